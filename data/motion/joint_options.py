"""Read the options of `--method joint` of main_test_vrt.py, e.g. `method.groups=8`.

data/chosen_method.py reads them before any file is opened. The method that they set is in
joint_method.py.

What must stay: the keys and their defaults, because stored results are continued only with equal
options. A new key needs a default that changes nothing.

Tests: tests/stories/test_joint.py
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from data.motion.joint.equations import Solver
from utils.options.section import Count, Positive, Section, read_section


class JointOptions(Section):
    """The options of `--method joint`, e.g. `method.groups=8`.

    All options but `type` and `context` are fields of `Solver`, with its defaults.
    """

    type: Literal["joint"] = "joint"  # chooses this section among the sections of all methods
    # Number of planes that are read before and after an exposure. None: half as many as the longest
    # exposure has. Set 0 if there are gaps between the spike files of a clip. Otherwise the planes
    # after a gap would be taken for the planes that follow the exposure.
    context: Count | None = None
    # Largest number of groups into which the planes of an exposure are divided. All planes of a
    # group are taken to have the same motion, so with fewer groups a fast scene loses sharpness.
    groups: Positive = Solver.groups
    # Number of times that the equations are linearised, and number of steps of conjugate gradients
    # after each linearisation. With larger numbers the frame is sharper and noisier.
    linearisations: Positive = Solver.linearisations
    steps: Positive = Solver.steps
    # Least standard deviation that is assumed for the error of a blurry pixel, in display values (0
    # to 1). The larger it is, the less the blurry frame counts beside the spikes. It is a divisor,
    # so it must be above 0.
    noise: float = Field(Solver.noise, gt=0)
    # The frame is a blend of the solution z and the first estimate z_0:
    #
    #     weight of z = 1 / (1 + (a / (guard a_0))^2)        1/2 if a = guard a_0
    #
    # a is the squared error of z, and a_0 the squared error of z_0. Both are measured by the
    # spikes. The value 0 switches the guard off: the frame is z.
    guard: float = Field(Solver.guard, ge=0)


def joint_options(values: Mapping[str, Any]) -> JointOptions:
    """Return a section {"type": "joint", ...} with its defaults. Raises OptionError."""
    return read_section(JointOptions, values, where="method", kind='method "joint"')
