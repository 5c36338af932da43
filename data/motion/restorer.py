"""Restore the sharp frames of a clip, one by one, along the motion that their spikes show.

Two methods use `MotionRestorer`: JointMethod (joint_method.py) and LearnedMotion
(learned_method.py). The two methods differ in `start`, `find` and `improve`:

    start        makes the first estimate z_0, by a formula (a `Reconstruction`,
                 data/reconstruct.py) or a network (a `Restorer`, models/restore/tiles/restorer.py)
    find         finds the motion within the exposure (flow.py; for weights, finder.py chooses)
    bands_of     cuts a large frame into bands of rows, which are solved one by one (bands.py)
    Equations    sets up the equations of both cameras along this motion (joint/)
    improve      turns z_0 into the sharp frame z, with the equations

An exposure with too few spikes (`LEAST_SPIKES`), or with a saturated spike camera, keeps its first
estimate. In other exposures, each pixel that stands still keeps its first estimate (stillness/).

A frame has H x W RGB pixels, and a plane (binary picture of the spike camera) has h x w spike
pixels. "A pixel of median light" is a spike pixel: half of the spike pixels have less light.

What must stay: `MotionRestorer.frames` sets `used_motion` before it yields a frame, because the
program calls `pictures()` after each frame, which draws this motion. All bands of a frame get the
motion, the gain and the number of spikes of the whole frame, so that no border of a band shows.

Tests: tests/stories/test_joint.py, tests/stories/test_motion_weights.py
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.motion import drawing
from data.motion.bands import MOST_PIXELS, Band, bands_of, join_pictures
from data.motion.exposure import Recording
from data.motion.finder import Finder
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.light import is_saturated, median_spikes, spikes_at_full_light
from data.motion.recording import RecordedClip
from data.motion.shifts import Motion
from data.motion.stillness.other_pictures import without_other_pictures
from data.motion.stillness.shares import share_by_change, share_by_reach
from data.motion.view import View
from utils.contract import FramePicture, Tick
from utils.dist import watchdog
from utils.system import keep_freed_memory


@dataclass(frozen=True)
class AreaInputs:
    """What a function `Improvement` may use besides z_0: recording and equations of an area.

    z_0 is the first estimate. An area is a frame, or a band of a large frame (`Area`). "A pixel of
    median light" is a spike pixel: half of the spike pixels have less light.

    If a new function needs one more value, add a field here. `MotionRestorer` fills in the fields.
    """

    recording: Recording  # the blurry frame and the planes of the exposure and around it
    equations: Equations  # the equations of both cameras along the motion
    gain: np.ndarray  # (h, w): spikes per plane of each spike pixel at full light
    median_spikes: float  # spikes of a pixel of median light in the exposure of the whole frame


# A function that improves a frame or a band: (z_0, all else that it may use) -> z. z_0 and z are
# (3, rows, W). There are two such functions: `blended_solution` in joint_method.py, and
# `after_steps` in learned_method.py.
Improvement = Callable[[Tensor, AreaInputs], Tensor]


class Area(NamedTuple):
    """A band with its spike pixels. All frames of a clip have the same areas.

    A frame that is not large is a single area.
    """

    band: Band
    # What the spike pixels see of the band. None if no spike pixel sees the band.
    pixels: SpikePixels | None
    is_good: np.ndarray  # (h, w) bool: whether each spike pixel of the band can be trusted


class WholeFrame(NamedTuple):
    """What is known of a whole frame before its areas are improved one after the other."""

    recording: Recording
    motion: Motion  # within the exposure
    gain: np.ndarray  # (h, w): spikes per plane of each spike pixel at full light
    median_spikes: float  # spikes of a pixel of median light in the exposure
    # (H, W) in [0, 1]: 1 where a pixel moves for certain, 0 where it stands still. In the result,
    # moving_share is the weight of the improved frame, and 1 - moving_share is the weight of the
    # first estimate.
    moving_share: np.ndarray


# Share of the work on a frame that is done when its first estimate is made. It is about the share
# of the time. Only the progress display depends on this number. With another value, the display
# would move less evenly.
FIRST_SHARE = 0.1
# Least number of spikes that a pixel at full light must have in an exposure. With fewer spikes, the
# result is the first estimate, because the motion could not be found, and the learned steps would
# add structures that are not in the scene. The table shows by how much the learned steps changed
# the PSNR of frames with few spikes (docs/benchmarks/quality_details.md, "Near darkness"):
#
#     2.3 to 2.6 spikes    +1.4 to +1.9 dB
#     0.6 to 1.0           -0.6 to +0.2 dB
#     0.3                  -3.5 and -1.6 dB
LEAST_SPIKES = 1.2


class MotionRestorer:
    """Restores the frames of a clip on a device (utils.contract.FrameRestorer, ShowsPictures).

    start: restorer (utils.contract.FrameRestorer) of the first estimates, a formula or a network.
    find: function that finds the motion within an exposure.
    solver: settings of the equations.
    improve: function that makes a first estimate better, by the equations.
    context: number of planes that are read before and after an exposure. If it is None, the number
    is half of the planes of the longest exposure of the clip.
    least_area: least area of a spike pixel, in RGB pixels. If spike pixels are smaller, all frames
    keep their first estimate. If it is 0, no area is too small.
    """

    def __init__(
        self,
        start: Any,
        find: Finder,
        solver: Solver,
        improve: Improvement,
        context: int | None,
        device: torch.device,
        least_area: float,
    ) -> None:
        self.start = start
        self.find = find
        self.solver = solver
        self.improve = improve
        self.context = context
        self.device = device
        self.least_area = least_area
        # The motion of the frame that was yielded last, for `pictures`. None if this frame kept its
        # first estimate, because nothing moves or the spikes are of no help.
        self.used_motion: Motion | None = None

    def describe(self) -> str:
        """Return how a frame is divided, in words.

        The results have this text under the key "tile", because other methods cut a frame into
        tiles. The motion needs no tiles, so the text is e.g. "none for the motion (bands of rows if
        a frame has over ... pixels); first estimate: ...".
        """
        bands = f"bands of rows if a frame has over {MOST_PIXELS:,} pixels"
        return f"none for the motion ({bands}); first estimate: {self.start.describe()}"

    def pictures(self) -> list[FramePicture]:
        """Return the motion of the frame that was yielded last, and its expected error."""
        if self.used_motion is None:
            return []
        return drawing.pictures_of(self.used_motion, with_legend=True)

    @torch.no_grad()
    def frames(self, reader: Any, wanted: range, tick: Tick) -> Iterator[torch.Tensor]:
        """Yield the frames `wanted` of a clip, (3, H, W) float32 in [0, 1], on the CPU.

        Each frame begins as the first estimate z_0 of `start`. `used_motion` is set before a frame
        is yielded, because the caller calls `pictures` after each frame.

        reader: a data.clips.readers.DatasetClip. tick: called with the work done since the last
        call, in frames. For each frame, the values of all calls sum up to 1.
        """
        # The equations make and delete hundreds of large arrays for each frame. The process keeps
        # the memory of a deleted array for the next array, which saves time.
        keep_freed_memory()
        clip = RecordedClip(reader, self.context)
        gain_of_clip, is_good = clip.gain()
        areas = self._areas_of(clip.view, is_good)

        def tick_of_start(done: float) -> None:
            """Report the work on first estimates, which is only a part of the work on frames."""
            tick(FIRST_SHARE * done)

        # A generator: `start` computes an estimate when the loop asks for it. `start` is a formula
        # (`Reconstruction.frames`, data/reconstruct.py) or a network in tiles.
        estimates = self.start.frames(reader, wanted, tick_of_start)
        for index, estimate in zip(wanted, estimates, strict=True):
            # A frame may take long on a CPU: tell the watchdog that the process still works.
            watchdog.go_on()
            z_0 = estimate.to(self.device).clamp(0, 1)
            # Free the memory of the last frame before the next frame is read: its motion here, and
            # its recording by `del` below. For a large frame, both take a tenth of the memory.
            self.used_motion = None
            whole = self._whole_frame(clip, index, gain_of_clip, is_good)
            if whole is None:
                frame = z_0
                tick(1 - FIRST_SHARE)
            else:
                frame = self._improved_frame(z_0, whole, areas, tick)
                self.used_motion = whole.motion
            del whole
            yield frame.cpu()

    def _areas_of(self, view: View, is_good: np.ndarray) -> list[Area]:
        """Divide the frames of a clip into areas, from the top to the bottom.

        An area is a band of rows with its spike pixels. A frame that is not large is one area.

        is_good: (h, w) bool, whether each spike pixel of the whole plane can be trusted.
        """
        areas = []
        for band in bands_of(view):
            pixels = SpikePixels(band.view, self.device) if band.has_spikes else None
            areas.append(Area(band, pixels, is_good=band.of_plane(is_good)))
        return areas

    def _whole_frame(
        self, clip: RecordedClip, index: int, gain_of_clip: np.ndarray, is_good: np.ndarray
    ) -> WholeFrame | None:
        """Read a frame, and find its motion. Return None if the frame keeps its first estimate.

        index: number of the frame in the clip. gain_of_clip: (h, w), spikes per plane of each spike
        pixel at full light. is_good: (h, w) bool, whether each spike pixel can be trusted.
        """
        # Untrusted spike pixels, e.g. hot pixels, get the spikes of their neighbours. Then planes
        # around the exposure are left out if they show another picture, e.g. another slide.
        recording = clip.read(index).with_repaired_pixels(is_good)
        recording = without_other_pictures(recording, clip.view, is_good)
        by_change = share_by_change(recording, clip.view, is_good)  # (H, W), 0 where nothing moves
        nothing_moves = not by_change.any()
        if nothing_moves or self._keeps_first_estimate(recording, clip.view):
            return None
        # The gain differs from the gain of the clip if the RGB camera changed its exposure.
        gain = clip.gain_in(recording, gain_of_clip, is_good)
        motion = self.find(recording, clip.view, gain)
        spikes = median_spikes(recording)
        # A pixel moves if its motion is long enough, and if its spikes change. So the two shares
        # (data/motion/stillness/shares.py) are multiplied.
        moving_share = share_by_reach(motion, spikes) * by_change
        return WholeFrame(
            recording, motion, gain=gain, median_spikes=spikes, moving_share=moving_share
        )

    def _keeps_first_estimate(self, recording: Recording, view: View) -> bool:
        """Return whether a frame keeps its first estimate, because its spikes do not help."""
        has_small_pixels = view.pixel_area < self.least_area
        is_nearly_dark = spikes_at_full_light(recording, view) < LEAST_SPIKES
        return has_small_pixels or is_nearly_dark or is_saturated(recording)

    def _improved_frame(
        self, z_0: Tensor, whole: WholeFrame, areas: list[Area], tick: Tick
    ) -> Tensor:
        """Return the improved frame (3, H, W), and z_0 where nothing moves.

        z_0: the first estimate of the frame, (3, H, W).
        whole: what is known of the frame, e.g. its motion. areas: the areas of the frame.
        tick: called after each area with the work done, as a share of the frame.
        """
        improved = []  # (3, rows, W) of each area
        for area in areas:
            improved.append(self._improved_rows(z_0, whole, area))
            watchdog.go_on()
            tick((1 - FIRST_SHARE) / len(areas))
        frame = join_pictures(improved, [area.band for area in areas])
        moving_share = torch.from_numpy(whole.moving_share).to(self.device)  # (H, W)
        # 0 keeps z_0, and 1 takes the improved frame.
        return z_0 + moving_share * (frame - z_0)

    def _improved_rows(self, z_0: Tensor, whole: WholeFrame, area: Area) -> Tensor:
        """Return the improved rows (3, rows, W) of an area. z_0: (3, H, W), of the whole frame."""
        band = area.band
        z_0_of_band = band.of_frame(z_0)
        if area.pixels is None:
            return z_0_of_band  # no spike pixel sees the band
        recording = band.of_recording(whole.recording)
        gain = band.of_plane(whole.gain)
        equations = Equations(
            recording,
            area.pixels,
            motion=band.of_motion(whole.motion),
            gain=gain,
            is_good=area.is_good,
            solver=self.solver,
            device=self.device,
        )
        inputs = AreaInputs(recording, equations, gain, whole.median_spikes)
        return self.improve(z_0_of_band, inputs)
