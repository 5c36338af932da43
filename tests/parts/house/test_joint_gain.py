"""lab/joint_gain.py: its table says how much the last way gains, and for which clip it gains least.

The gains are over the operator, in dB. The last way is "motion".
"""

from dataclasses import replace

from lab.joint_gain import WAYS, Scores, table_of


def test_the_table_has_the_gain_with_its_interval_and_names_the_worst_clip():
    gains = {"camel_00": 3.0, "camel_01": 1.0, "park_00": -0.5}
    # All ways but the last have these scores of each clip.
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
