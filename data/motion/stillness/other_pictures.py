"""Leave out the planes around an exposure that show another picture.

A recording has the planes (binary pictures of the spike camera) of an exposure, and some planes
before and after it. Usually a motion also goes on before and after the exposure. But a thing may
move only between the exposures, e.g. slides, or a stage that stands still for each frame. The
motion of such a thing from one exposure to the next would be taken for a motion in the exposure.

So the planes before the exposure are left out if the evidence of a change (evidence.py) says both:

    within the exposure         nothing moves: evidence of at most NO_EVIDENCE
    when the exposure begins    the picture changes: evidence above SURE_EVIDENCE

The planes after the exposure are left out in the same way, by the evidence at the end of the
exposure.

If spikes were recorded only during the exposures, the picture of a moving scene jumps from each
exposure to the next, too. But this picture also changes within the exposure, so all planes stay.

Of 668 frames of clips that were recorded without gaps, one frame lost planes wrongly, in dim light.
No trained weights depend on this file, so its rule may change.
test_planes_that_show_another_picture_are_left_out and test_planes_of_the_same_motion_stay notice
another rule.

Tests: tests/parts/data/test_stillness.py
"""

import numpy as np

from data.motion.exposure import Recording
from data.motion.light import integrated
from data.motion.stillness.common_change import order_by_light
from data.motion.stillness.evidence import (
    NO_EVIDENCE,
    PIECES,
    SURE_EVIDENCE,
    evidence,
    most_evidence,
)
from data.motion.view import View


def without_other_pictures(recording: Recording, view: View, is_good: np.ndarray) -> Recording:
    """Return the recording without planes around the exposure that show another picture.

    is_good: (h, w) bool, whether each spike pixel can be trusted.
    """
    if recording.length < PIECES:
        return recording  # too short to tell
    frame_light = view.means(integrated(recording.blurry, view.is_display))
    exposure = recording.stream[recording.begin : recording.end]
    inside, _ = most_evidence(exposure, frame_light, is_good)
    if inside > NO_EVIDENCE:
        return recording  # something moves within the exposure

    first = 0
    end = len(recording.stream)
    if _changes_at(recording.begin, recording, frame_light, is_good):
        first = recording.begin
    if _changes_at(recording.end, recording, frame_light, is_good):
        end = recording.end
    return recording.with_planes(first, end)


def _changes_at(
    time: int, recording: Recording, frame_light: np.ndarray, is_good: np.ndarray
) -> bool:
    """Return whether the picture surely changes when the exposure begins, or when it ends.

    The half exposure before the time is compared with the half exposure after the time. Returns
    False if fewer planes were recorded.

    time: when the exposure begins or ends, in planes. frame_light, is_good: as in `most_evidence`.
    """
    half = recording.length // 2
    stream = recording.stream
    if time < half or time + half > len(stream):
        return False
    before = stream[time - half : time].mean(axis=0, dtype=np.float32) * is_good
    after = stream[time : time + half].mean(axis=0, dtype=np.float32) * is_good
    light = (before + after) / 2
    evidence_in_frame, _ = evidence(after - before, light, order_by_light(frame_light, light))
    return evidence_in_frame > SURE_EVIDENCE
