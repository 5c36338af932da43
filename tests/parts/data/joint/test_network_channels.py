"""data/motion/joint/network_channels.py: what a network sees of the equations.

A frame may not solve the equations yet. The pull is the change of the frame that the equations
want. `true_case` is a rendered frame with its equations along the true motion.

"Measured" in a comment is the value when the test was written. The limit beside it leaves room for
other versions of torch.
"""

import pytest

from tests.helpers.joint_case import INSIDE

# Channels of `Equations.pulls`:
#
#     0 to 2    the change of each colour that the RGB equations want
#     3         the change of the grey value that the spike equations want
#     4, 5      sizes of the residuals of the RGB equations, and of the spike equations
#     6         by how much the spikes of the sharp instant are brighter than the frame
CHANGES = slice(0, 4)
COLOURS = slice(0, 3)
GREY = slice(3, 4)
OTHERS = slice(4, 7)
BRIGHTER = slice(6, 7)


@pytest.mark.parametrize(
    "channel",
    [pytest.param(GREY, id="spike equations"), pytest.param(BRIGHTER, id="sharp instant")],
)
def test_the_equations_pull_a_frame_towards_the_sharp_one(true_case, channel):
    case = true_case

    pulls = case.equations.pulls(case.blurry)[INSIDE]  # (7, rows, columns)
    pull = pulls[channel]  # (1, rows, columns)

    # The cosine of the angle between the pull and the change that leads to the sharp frame: 1 if
    # pull and change are proportional, 0 if they are unrelated.
    wanted = (case.sharp - case.blurry)[INSIDE].mean(0, keepdim=True)  # (1, rows, columns)
    cosine = (pull * wanted).sum() / (pull.norm() * wanted.norm())
    assert float(cosine) > 0.5  # measured: 0.75 to 0.82


def test_the_rgb_equations_pull_the_colours_of_a_frame_towards_the_sharp_one(true_case):
    case = true_case

    pull = case.equations.pulls(case.blurry)[INSIDE][COLOURS]  # (3, rows, columns)

    # The cosine of the angle between the pull and the change that leads to the sharp frame: 1 if
    # pull and change are proportional. The pull of the RGB equations has a smaller cosine than the
    # pull of the spike equations, because the RGB camera sees only the mean light.
    wanted = (case.sharp - case.blurry)[INSIDE]  # (3, rows, columns)
    cosine = (pull * wanted).sum() / (pull.norm() * wanted.norm())
    assert float(cosine) > 0.3  # measured: 0.50


def test_the_equations_hardly_pull_the_sharp_frame(true_case):
    case = true_case

    of_blurry = case.equations.pulls(case.blurry)[INSIDE].abs()
    of_sharp = case.equations.pulls(case.sharp)[INSIDE].abs()

    # The ratio `changes` was measured as 0.12 if the spike camera integrates light, and as 0.17 if
    # the spike camera integrates display values.
    changes = of_sharp[CHANGES].mean() / of_blurry[CHANGES].mean()
    assert changes < 0.5
    # The ratio `others` was measured as 0.66 (light) and as 0.79 (display values). The residuals do
    # not vanish, because the residuals contain the noise of the spikes.
    others = of_sharp[OTHERS].mean() / of_blurry[OTHERS].mean()
    assert others < 0.8
