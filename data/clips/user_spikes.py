"""Refuse spikes of a user that cannot belong to his frames.

Tests: tests/stories/test_main_test.py
"""

from utils.errors import DataError

# Largest relative difference between the ratio height / width of a frame and of a spike plane. The
# sides of a small plane are rounded to whole pixels: a plane of 50 rows may be one row too high,
# which is 2 %. A larger value would accept planes that were read with a wrong size.
_RATIO_TOLERANCE = 0.02


def check_same_view(frame: tuple[int, int], spikes: tuple[int, int], where: str) -> None:
    """Refuse a spike plane if its ratio of height to width differs from the ratio of the frame.

    frame: (H, W) of a frame. spikes: (h, w) of a plane. where: file of the spikes, for the message.
    Raises DataError if the ratios differ by more than `_RATIO_TOLERANCE`.
    """
    H, W = frame
    h, w = spikes
    # The ratios are equal if H / W = h / w, or W h = H w without a division.
    difference = abs(W * h - H * w)
    if difference > _RATIO_TOLERANCE * W * h:
        raise DataError(
            what=f"spikes of {h} x {w} for frames of {H} x {W}",
            where=where,
            expected="the same ratio of height to width",
            do="correct the size of the spike planes; "
            "for a camera with another view, give spike.calibration",
        )
