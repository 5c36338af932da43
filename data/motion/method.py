"""The sharp frames of a clip along the motion that its spikes show: `--method joint`, and the steps
of weights with the fusion "motion".
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from data.motion.flow import motion_of
from data.motion.joint import Equations, Solver, SpikePixels, guarded
from data.motion.learned import Finder, FinderName, median_spikes
from data.motion.recording import RecordedClip, Recording
from utils.contract import Method, Tick
from utils.dist import watchdog
from utils.options.models import Count, Positive
from utils.options.section import Section, read_section

NAME = "joint"
# What the first estimate takes of the work on a frame, for the display of progress.
FIRST = 0.1


class JointOptions(Section):
    """The options `method.key=value`; see `Solver` for those of the solution.

    context: planes that are read on each side of an exposure; None: half as many as it has. 0 is
    right if time lies between the spike files of a clip.
    """

    type: Literal["joint"] = NAME
    context: Count | None = None
    groups: Positive = Solver.groups
    linearisations: Positive = Solver.linearisations
    steps: Positive = Solver.steps
    noise: float = Field(Solver.noise, gt=0)
    guard: float = Field(Solver.guard, ge=0)


def joint_options(values: Mapping[str, Any]) -> JointOptions:
    """Return a section {"type": "joint", ...} with its defaults. Raises OptionError."""
    return read_section(JointOptions, values, "method", 'method "joint"')


class JointMethod:
    """A method (utils.contract.Method) that improves the frames of another one.

    start: the method that makes the first estimates z_0, a formula or a network. Its frames have
    the size of the blurry ones, one for each.
    """

    is_grey = False
    instants = 1

    def __init__(self, options: JointOptions, start: Method) -> None:
        self.options = options
        self.start = start
        self.can_cut = start.can_cut
        self.center_frame_only = start.center_frame_only

    def settings(self) -> dict[str, Any]:
        """Return everything that the frames depend on."""
        return {"method": self.options.plain(), "start": self.start.settings()}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report."""
        options = []
        for key, value in self.options.plain().items():
            if key != "type" and value is not None:
                options.append(f"{key} {value}")
        start = self.start.protocol()
        first = start.pop("method", "the output of the weights")
        words = f"{NAME} ({', '.join(options)}), begun with {first}"
        return {"method": words, **start}

    def restorer(self, device: torch.device) -> "MotionRestorer":
        """Return what restores on a device."""
        options = self.options
        solver = Solver(**options.model_dump(exclude={"type", "context"}))
        start = self.start.restorer(device)
        return MotionRestorer(start, motion_of, solver, solved, options.context, device)


# Learned steps for few spikes are taken below so many of a pixel of median light in an exposure. On
# coffee and walker they gain 0.2 to 0.9 dB more than the others below 6 spikes, 0 to 0.1 dB at 16
# to 18, and up to 0.2 dB less above 14 in ideal conditions.
FEW_SPIKES = 10.0

# (z_0, equations) -> z, both (3, H, W).
Steps = Callable[[Tensor, Equations], Tensor]


@dataclass(frozen=True)
class LearnedParts:
    """The learned parts of a network on a device.

    steps: for good light. few_steps: for few spikes. find: what finds the motion.
    """

    steps: Steps
    few_steps: Steps
    find: Finder


# (first estimate z_0, exposure) -> z, both (3, H, W).
Improvement = Callable[[Tensor, "Exposure"], Tensor]


class LearnedMotion:
    """A method (utils.contract.Method) that improves frames of a network by its learned steps.

    start: restores the first estimates z_0 with the network. parts: device -> the learned parts on
    it. solver: of the equations. motion_by: name of what finds the motion.
    """

    is_grey = False
    instants = 1

    def __init__(
        self,
        start: Method,
        parts: Callable[[torch.device], LearnedParts],
        solver: Solver,
        motion_by: FinderName,
    ) -> None:
        self.start = start
        self.parts = parts
        self.solver = solver
        self.motion_by = motion_by
        self.can_cut = start.can_cut
        self.center_frame_only = start.center_frame_only

    def settings(self) -> dict[str, Any]:
        """Return everything that the frames depend on; the steps are in the weights."""
        return {**self.start.settings(), "motion": asdict(self.solver)}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report."""
        words = "learned steps along the motion of the spikes"
        if self.motion_by != "dis":
            words += ", which a network helps to find"
        return {**self.start.protocol(), "motion": words}

    def restorer(self, device: torch.device) -> "MotionRestorer":
        """Return what restores on a device."""
        parts = self.parts(device)

        def stepped(z_0: Tensor, exposure: "Exposure") -> Tensor:
            has_few = median_spikes(exposure.recording) < FEW_SPIKES
            steps = parts.few_steps if has_few else parts.steps
            return steps(z_0, exposure.equations)

        start = self.start.restorer(device)
        return MotionRestorer(start, parts.find, self.solver, stepped, None, device)


@dataclass(frozen=True)
class Exposure:
    """What was recorded of a frame, its equations, and the gain of the spike pixels."""

    recording: Recording
    equations: Equations
    gain: np.ndarray


def solved(z_0: Tensor, exposure: Exposure) -> Tensor:
    """Return the solution of the equations, blended with z_0 where it fits worse."""
    equations = exposure.equations
    z = equations.solve(z_0)
    guard = equations.solver.guard
    frame, _ = guarded(z, z_0, exposure.recording, equations.pixels, exposure.gain, guard)
    return frame


class MotionRestorer:
    """Restores the frames of a clip on a device.

    start: what restores the first estimates. find: what finds the motion. improve: what makes the
    estimates better. context: see `RecordedClip`.
    """

    def __init__(
        self,
        start: Any,
        find: Finder,
        solver: Solver,
        improve: Improvement,
        context: int | None,
        device: torch.device,
    ) -> None:
        self.start = start
        self.find = find
        self.solver = solver
        self.improve = improve
        self.context = context
        self.device = device

    def describe(self) -> str:
        """Return how a frame is divided, in words."""
        return f"none for the motion; first estimate: {self.start.describe()}"

    @torch.no_grad()
    def frames(self, reader: Any, wanted: range, tick: Tick) -> Iterator[torch.Tensor]:
        """Yield the frames `wanted` of a clip, (3, H, W) float32 in [0, 1].

        reader: a data.clips.readers.DatasetClip.
        """
        clip = RecordedClip(reader, self.context)
        pixels = SpikePixels(clip.view, self.device)
        gain, is_good = clip.gain()
        first = self.start.frames(reader, wanted, lambda done: tick(FIRST * done))
        for index, estimate in zip(wanted, first, strict=True):
            watchdog.go_on()
            z_0 = estimate.to(self.device).clamp(0, 1)
            recording = clip.read(index)
            motion = self.find(recording, clip.view, gain)
            equations = Equations(
                recording, pixels, motion, gain, is_good, self.solver, self.device
            )
            frame = self.improve(z_0, Exposure(recording, equations, gain))
            yield frame.cpu()
            tick(1 - FIRST)
