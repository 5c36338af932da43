"""Hold the result of a fit, and decide which of its values are sure, and which are applied.

A fit compares frames with their spikes, and finds three values, each with a standard error:

    matrix    where the spike pixels lie on the frame
    offset    by how many planes (read-outs) the exposure is later than the files say
    share     the fraction of the planes during which the frame was exposed

The fit begins with the start values: a given matrix, the offset 0, and all planes. Without a fit,
the clip would be read with these values.

A found value is "sure" if its error is small. It is "applied", i.e. it replaces the start value, if
it also differs enough from the start value. data/cameras/self_calibration.py applies values to a
clip. scripts/calibrate.py writes values to a file, and refuses large errors.

What must stay: the fields of `FitResult`, because they are kept in a file beside the run. If a
field is added or changed, raise FORMAT in data/cameras/self_calibration.py. The words of the log
are explained in docs/benchmarks/calibration.md.

Tests: tests/parts/data/test_registration_result.py (fails if one of the limits is left out),
tests/parts/data/test_self_calibration.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.cameras.calibration import scale_of, share_to_read

# The matrix counts as found if the frames explain the spikes, and its error is not large. If the
# matrix is not found, no value is sure, and no value is applied.

# Least fraction of the variance of the spikes' details that the frames must explain. For frames of
# another scene, the fraction is about 0. Details are what a band-pass filter keeps of an image
# (details.py). Chosen by hand.
LEAST_EXPLAINED = 0.25
# Largest error of the matrix, in RGB pixels. Chosen by hand: it is about three times the error of a
# sure matrix (SURE_WITHIN_PX).
FOUND_WITHIN_PX = 0.5

# A value is sure if its error is at most its limit. docs/benchmarks/calibration.md quotes the three
# limits.

# Error of the matrix, in RGB pixels. On 100 random rigs (pairs of simulated cameras), 95 % of the
# sure matrices were within 0.2 RGB pixels of the true matrix.
SURE_WITHIN_PX = 0.15
# Error of the offset, in planes. rounds.py compares with this limit, too, when it decides which
# estimate is taken. So a changed limit also changes which estimate is taken.
SURE_WITHIN_PLANES = 0.7
SURE_WITHIN_SHARE = 0.03  # error of the share, which is a fraction of the planes

# A value is applied only if it differs from the start value by at least its limit. With a limit of
# 0, the noise of the fit would change a clip although its cameras are aligned.
LEAST_CHANGE_PX = 0.15  # change of the matrix, in RGB pixels
LEAST_CHANGE_PLANES = 0.75  # change of the offset, in planes
LEAST_CHANGE_SHARE = 0.04  # change of the share
# The change must also be at least this many times its error. Three standard errors are rarely
# chance.
LEAST_CHANGE_IN_ERRORS = 3


class Decisions(NamedTuple):
    """A yes or no for each value that a fit finds, in the order of `FitResult.errors`."""

    matrix: bool
    offset: bool
    share: bool


@dataclass(frozen=True)
class FitResult:
    """The result of a fit."""

    matrix: np.ndarray  # (3, 3), spike pixel -> RGB pixel
    # Number of planes by which the middle of the exposure is later than the files say.
    offset: float
    share: float  # fraction of the planes during which the frame was exposed, e.g. 0.8
    # The brightness of the spikes: spikes per plane = gain * light + dark, with light from 0 to 1.
    gain: float
    dark: float
    # Standard errors of matrix, offset and share, in this order: matrix_error, offset_error and
    # share_error below take one element each, and explain its unit. An error is infinite if the
    # clip does not determine the value.
    errors: tuple[float, float, float]
    explained: float  # fraction of the variance of the spikes' details that the frames explain
    # How far the fit moved the spike pixels on the frame, in RGB pixels, the mean over the plane.
    # A spike pixel is moved from the point of the starting matrix to the point of `matrix`.
    moved: float
    # The parts of the plane were also matched separately (parts.py), each at its best position. For
    # each part, how far this position is from the position by the matrix, in RGB pixels. The name
    # must stay, because it is a key of kept results. fit.py calls other values residuals (r).
    residuals: tuple[float, ...] = ()

    @property
    def matrix_error(self) -> float:
        """The standard error of the matrix in RGB pixels, the mean over the plane."""
        return self.errors[0]

    @property
    def offset_error(self) -> float:
        """The standard error of the offset in planes."""
        return self.errors[1]

    @property
    def share_error(self) -> float:
        """The standard error of the share."""
        return self.errors[2]

    @property
    def share_to_read(self) -> float:
        """The fraction of the planes to read: 1.12 times the exposure share, and at most 1.

        The channels are made of a few more planes than were exposed. The factor is PLANES_FACTOR in
        data/cameras/calibration.py, which gives the reason.
        """
        return share_to_read(self.share)

    @property
    def is_matrix_found(self) -> bool:
        """Return whether the matrix can be trusted at all.

        The frames must explain the spikes (LEAST_EXPLAINED), and the error must be small
        (FOUND_WITHIN_PX). For example, a clip without texture has a large error.
        """
        return self.explained >= LEAST_EXPLAINED and self.matrix_error <= FOUND_WITHIN_PX

    @property
    def is_sure(self) -> Decisions:
        """Return for each value whether its error is small (SURE_WITHIN_...)."""
        return Decisions(
            matrix=self.is_matrix_found and self.matrix_error <= SURE_WITHIN_PX,
            offset=self.is_matrix_found and self.offset_error <= SURE_WITHIN_PLANES,
            share=self.is_matrix_found and self.share_error <= SURE_WITHIN_SHARE,
        )

    @property
    def is_applied(self) -> Decisions:
        """Return for each value whether it is applied to the clip, in place of the start value.

        A change must be at least three times its error, and at least the least change
        (LEAST_CHANGE_PX, LEAST_CHANGE_PLANES, LEAST_CHANGE_SHARE). The offset and the share must
        also be sure. The matrix need only be found. The reason: on 50 random pairs of cameras, each
        matrix that had moved by three times its error was nearer to the truth than the start.

        test_cameras_that_are_aligned_stay_as_they_are notices if too much is applied.
        """
        is_sure = self.is_sure
        least_moved = max(LEAST_CHANGE_PX, LEAST_CHANGE_IN_ERRORS * self.matrix_error)
        least_offset = max(LEAST_CHANGE_PLANES, LEAST_CHANGE_IN_ERRORS * self.offset_error)
        least_shortening = max(LEAST_CHANGE_SHARE, LEAST_CHANGE_IN_ERRORS * self.share_error)
        # The share changes only which planes are read. So the change of the share is the fraction
        # of the planes that is no longer read. E.g. 1.12 times the exposure share 0.9 is above 1,
        # so all planes are read, as at the start, and the change is 0.
        shortened_by = 1 - self.share_to_read
        return Decisions(
            matrix=self.is_matrix_found and self.moved >= least_moved,
            offset=is_sure.offset and abs(self.offset) >= least_offset,
            share=is_sure.share and shortened_by >= least_shortening,
        )

    def sentence(self) -> str:
        """Describe the result for the log, in one line. E.g.

        moved by 2.69 px, turned by 0.36 degrees, 2.0014 RGB pixels per spike pixel (error
        0.19 px), not sure, yet nearer; exposed +0.9 planes later (error 0.6), left as it was;
        for 74% of the planes (error 2.7%), 83% are read; spikes per plane = 0.304 light -0.0024
        """
        if not self.is_matrix_found:
            return (
                f"not sure (the frames explain {self.explained:.0%} of the spikes' details, error "
                f"of the place {self.matrix_error:.2f} px): nothing is changed"
            )
        matrix_note, offset_note, share_note = self._notes()
        # The first column of the matrix says where a step of one spike pixel to the right leads in
        # the frame: (right, down).
        right = self.matrix[0, 0]
        down = self.matrix[1, 0]
        angle = np.degrees(np.arctan2(down, right))
        place = (
            f"moved by {self.moved:.2f} px, turned by {angle:.2f} degrees, "
            f"{scale_of(self.matrix):.4f} RGB pixels per spike pixel "
            f"(error {self.matrix_error:.2f} px){matrix_note}"
        )
        time = (
            f"exposed {self.offset:+.1f} planes later (error {self.offset_error:.1f}){offset_note}"
        )
        share = f"for {self.share:.0%} of the planes (error {self.share_error:.1%}){share_note}"
        spikes = f"spikes per plane = {self.gain:.3f} light {self.dark:+.4f}"
        return "; ".join([place, time, share, spikes])

    def _notes(self) -> list[str]:
        """Return a note for the log on matrix, offset and share, in this order.

        An applied value has the note "", and a value that is not applied has a note that says why.
        Two applied values have a note, too: a matrix that is not sure, and the share.
        """
        notes = []
        for is_sure, is_applied in zip(self.is_sure, self.is_applied, strict=True):
            if is_applied:
                notes.append("")
            elif is_sure:
                notes.append(", left as it was")
            else:
                notes.append(", not sure: left")
        matrix_note, offset_note, share_note = notes

        # A matrix may be applied although it is not sure. The docstring of `is_applied` says why.
        if self.is_applied.matrix and not self.is_sure.matrix:
            matrix_note = ", not sure, yet nearer"
        # The share that is read is 1.12 times the exposure share, so the log has both numbers.
        if self.is_applied.share:
            share_note = f", {self.share_to_read:.0%} are read"
        return [matrix_note, offset_note, share_note]
