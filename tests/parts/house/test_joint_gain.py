"""lab/joint_gain.py: its table says how much the last way gains, and for which clip it gains least.

The gains are over the operator, in dB. The last way is "motion". A way that cannot be compared with
the operator is refused.
"""

from dataclasses import replace

import pytest

from lab.joint_gain import WAYS, Scores, read_arguments, table_of


def test_the_table_has_the_gain_with_its_interval_and_names_the_worst_clip():
    gains = {"camel_00": 3.0, "camel_01": 1.0, "park_00": -0.5}
    # In all ways except the last, each clip has these scores.
    usual = Scores(psnr=25.0, blurry=20.0, moving=24.0, s_per_frame=0.5)
    found = {way: dict.fromkeys(gains, usual) for way in WAYS}
    for clip, gain in gains.items():
        found["motion"][clip] = replace(usual, psnr=25.0 + gain, moving=26.0)

    lines = table_of({"dim": found}).splitlines()
    # The first two lines are the header and its rule.
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:2] == ["dim", "20.00"]  # the condition, and the blurry frames
    assert cells[-4:] == [
        # The mean gain is 3.5 / 3, and its standard deviation 1.756. Student's t for three clips is
        # 4.303, so the 95 % interval is 4.303 * 1.756 / sqrt(3).
        "+1.17 ± 4.36",
        "+2.00",  # at moving pixels: 26 - 24
        "-0.50 (park_00)",  # the clip with the least gain
        "0.50",  # seconds per frame
    ]


# "motin" is misspelt, "exposure" is a method of --formulas, and "operator" is the operator itself.
# With "operator" alone, the table would compare the operator with itself.
@pytest.mark.parametrize("way", ["motin", "exposure", "operator"])
def test_a_way_that_cannot_be_compared_with_the_operator_is_refused(way, capsys):
    with pytest.raises(SystemExit):
        read_arguments(["--videos", "videos", "--ways", way])
    assert f"invalid choice: '{way}'" in capsys.readouterr().err


def test_a_way_is_chosen_by_its_name():
    arguments = ["--videos", "videos", "--ways"]
    assert read_arguments([*arguments, "motion"]).ways == ["motion"]
    assert read_arguments([*arguments, "joint from operator"]).ways == ["joint from operator"]
