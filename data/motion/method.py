"""Restore the sharp frames of a clip along the motion that its spikes show.

main_test_vrt.py uses two methods of this module (they implement utils.contract.Method):

    JointMethod     `--method joint`: solves the equations of both cameras, without learning
    LearnedMotion   weights with the fusion "motion": takes learned steps on these equations

Both make a `MotionRestorer`, which goes through a clip frame by frame:

    start       makes the first estimate z_0, by a formula or a network
    find        finds the motion within the exposure (data.motion.flow or data.motion.learned)
    bands       rows of a large frame, e.g. 0 to 499; each band is solved alone (data.motion.bands)
    Equations   the equations of both cameras along this motion (data.motion.joint)
    improve     z_0 and the equations -> sharp frame

An exposure with too few spikes (`LEAST_SPIKES`), or with a saturated spike camera, keeps its first
estimate. So does each pixel that stands still (data.motion.stillness).

Sizes: a frame has H x W RGB pixels, and the spike camera h x w spike pixels. A plane is one binary
picture (h, w) of the spike camera.

What must stay: the keys of `settings`, because an interrupted test continues only if its settings
are equal. Also the order in `MotionRestorer.frames`: `pictures` is asked after each frame, so
`used_motion` is set before the frame is yielded.

Tests: tests/stories/test_joint.py, tests/stories/test_motion_weights.py
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from data.motion import drawing
from data.motion.bands import MOST_PIXELS, Band, bands_of, joined
from data.motion.flow import Motion, median_spikes, motion_of
from data.motion.joint import Equations, Solver, SpikePixels, guarded
from data.motion.learned import Finder, FinderName
from data.motion.recording import (
    RecordedClip,
    Recording,
    View,
    is_saturated,
    spikes_at_full_light,
)
from data.motion.stillness import share_by_change, share_by_reach
from utils.contract import FramePicture, Method, Tick
from utils.dist import watchdog
from utils.options.models import Count, Positive
from utils.options.section import Section, read_section

NAME = "joint"
# Least number of spikes that a pixel at full light must have in an exposure. With fewer spikes, the
# frame is the first estimate: the motion could not be found, and the learned steps would add
# structures that are not there. On the clips coffee and walker they gain 1.4 dB or more with 2.3
# spikes at full light. With 0.6 to 1 spikes they gain 0.2 dB at most and lose up to 0.6 dB, and
# with 0.3 up to 3.5 dB.
LEAST_SPIKES = 1.2
# Share of the first estimate in the work on a frame. Only the progress display depends on it: with
# another value, the display would move less evenly.
FIRST_SHARE = 0.1


class JointOptions(Section):
    """The options of `--method joint`, e.g. `method.groups=8`.

    context: number of planes that are read before and after an exposure. None: half as many as the
    exposure has. 0 is right if some planes between the spike files of a clip were not recorded.
    The other options are the fields of `Solver`, with its defaults. `Solver` explains them.
    """

    type: Literal["joint"] = NAME
    context: Count | None = None
    groups: Positive = Solver.groups
    linearisations: Positive = Solver.linearisations
    steps: Positive = Solver.steps
    noise: float = Field(Solver.noise, gt=0)
    # 0 is allowed: the solution then is not blended with the first estimate.
    guard: float = Field(Solver.guard, ge=0)


def joint_options(values: Mapping[str, Any]) -> JointOptions:
    """Return a section {"type": "joint", ...} with its defaults. Raises OptionError."""
    return read_section(JointOptions, values, "method", 'method "joint"')


class JointMethod:
    """A method (utils.contract.Method) that improves the frames of another method.

    start: the method that makes the first estimates z_0, by a formula or a network. It gives one
    frame for each blurry frame, of the same size.
    """

    is_grey = False  # the frames have colours
    instants = 1  # number of sharp frames for each blurry frame
    picture_names = drawing.PICTURE_NAMES  # of `MotionRestorer.pictures`

    def __init__(self, options: JointOptions, start: Method) -> None:
        self.options = options
        self.start = start
        # Each frame is improved alone. So what can be restored alone is decided by `start`.
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
        protocol_of_start = self.start.protocol()
        # The protocol of a formula has the line "method", e.g. "exposure". The protocol of a
        # network has the line "weights" in its place.
        first = protocol_of_start.pop("method", "the output of the weights")
        words = f"{NAME} ({', '.join(options)}), begun with {first}"
        return {"method": words, **protocol_of_start}

    def restorer(self, device: torch.device) -> "MotionRestorer":
        """Return the object that restores frames on a device. It finds motions by optical flow."""
        options = self.options
        solver = Solver(**options.model_dump(exclude={"type", "context"}))
        start = self.start.restorer(device)
        return MotionRestorer(
            start,
            find=motion_of,
            solver=solver,
            improve=solved,
            context=options.context,
            device=device,
        )


# A network may have two sets of learned steps: for good light, and for few spikes. The steps for
# few spikes are used if a pixel of median light has fewer spikes than this in an exposure. Compared
# with the steps for good light, they gain on the clips coffee and walker 0.2 to 0.9 dB more below 6
# spikes, and 0 to 0.1 dB more at 16 to 18 spikes. In ideal conditions they gain up to 0.2 dB less
# above 14 spikes. The limit is the middle between 6 and 14.
FEW_SPIKES = 10.0

# If a spike pixel is smaller than this number of RGB pixels, the learned steps are not used. They
# were trained with 4 RGB pixels in a spike pixel. With 1 they gain as much, and with 1/4 the frame
# gets grain and another brightness, and loses 2.5 dB. No size between 1/4 and 1 was measured. The
# limit is a little below 1, so that spike pixels of the size of RGB pixels still count as such if
# the calibration is a little off.
LEAST_AREA = 0.6

# Takes learned steps: (first estimate z_0, equations) -> z. Both frames are (3, H, W).
Steps = Callable[[Tensor, Equations], Tensor]


@dataclass(frozen=True)
class LearnedParts:
    """The learned parts of a network on a device."""

    steps: Steps  # for good light
    few_steps: Steps  # for few spikes, see `FEW_SPIKES`
    find: Finder  # finds the motion within an exposure


# Improves a frame or a band: (first estimate z_0, its exposure) -> z. Both are (3, rows, W).
Improvement = Callable[[Tensor, "Exposure"], Tensor]


class LearnedMotion:
    """A method (utils.contract.Method) that improves frames of a network by its learned steps.

    start: the method that makes the first estimates z_0 with the network.
    parts: function that puts the learned parts on a device and returns them.
    solver: settings of the equations.
    motion_by: "dis", "network" or "both", see data/motion/learned.py.
    """

    is_grey = False  # the frames have colours
    instants = 1  # number of sharp frames for each blurry frame
    picture_names = drawing.PICTURE_NAMES  # of `MotionRestorer.pictures`

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
        """Return everything that the frames depend on.

        The settings of `start` contain the digest of the weights file, and with it the learned
        steps.
        """
        return {**self.start.settings(), "motion": asdict(self.solver)}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report."""
        words = "learned steps along the motion of the spikes"
        if self.motion_by != "dis":
            words += ", which a network helps to find"
        return {**self.start.protocol(), "motion": words}

    def restorer(self, device: torch.device) -> "MotionRestorer":
        """Return the object that restores frames on a device."""
        parts = self.parts(device)

        def after_steps(z_0: Tensor, exposure: "Exposure") -> Tensor:
            has_few_spikes = exposure.median_spikes < FEW_SPIKES
            steps = parts.few_steps if has_few_spikes else parts.steps
            return steps(z_0, exposure.equations)

        start = self.start.restorer(device)
        return MotionRestorer(
            start,
            find=parts.find,
            solver=self.solver,
            improve=after_steps,
            context=None,
            device=device,
            least_area=LEAST_AREA,
        )


@dataclass(frozen=True)
class Exposure:
    """A frame, or a band of a frame, with what was recorded of it and the equations that follow.

    A function `Improvement` gets it. So a new function of this kind needs no other argument.
    """

    recording: Recording
    equations: Equations
    gain: np.ndarray  # (h, w): spikes per plane of each spike pixel at full light
    median_spikes: float  # spikes of a pixel of median light in the exposure of the whole frame


def solved(z_0: Tensor, exposure: Exposure) -> Tensor:
    """Return the solution of the equations, blended with z_0 where the solution fits worse."""
    equations = exposure.equations
    z = equations.solve(z_0)
    guard = equations.solver.guard
    frame, _ = guarded(z, z_0, exposure.recording, equations.pixels, exposure.gain, guard)
    return frame


class Area(NamedTuple):
    """A band of the frames of a clip, and its spike pixels. It is the same for all frames."""

    band: Band
    pixels: SpikePixels | None  # None if no spike pixel sees the band
    is_good: np.ndarray  # (h, w) bool: whether each spike pixel can be trusted


class Seen(NamedTuple):
    """What is known of a whole frame before it is improved."""

    recording: Recording
    motion: Motion  # within the exposure
    gain: np.ndarray  # (h, w): spikes per plane of each spike pixel at full light
    median_spikes: float  # spikes of a pixel of median light in the exposure
    # (H, W) in [0, 1]: how sure it is that a pixel moves. This share of the improved frame is used.
    moves: np.ndarray


class MotionRestorer:
    """Restores the frames of a clip on a device (utils.contract.FrameRestorer, ShowsPictures).

    start: restorer of the first estimates.
    find: function that finds the motion within an exposure.
    solver: settings of the equations.
    improve: function that makes a first estimate better.
    context: number of planes that are read before and after an exposure, see `JointOptions`.
    least_area: if a spike pixel has a smaller area, in RGB pixels, all frames keep their first
    estimate.
    """

    def __init__(
        self,
        start: Any,
        find: Finder,
        solver: Solver,
        improve: Improvement,
        context: int | None,
        device: torch.device,
        least_area: float = 0.0,
    ) -> None:
        self.start = start
        self.find = find
        self.solver = solver
        self.improve = improve
        self.context = context
        self.device = device
        self.least_area = least_area
        # The motion of the frame that was yielded last, for `pictures`. None if the frame is its
        # first estimate, because nothing moves or the spikes are of no help.
        self.used_motion: Motion | None = None

    def describe(self) -> str:
        """Return how a frame is divided, in words."""
        bands = f"bands of rows if a frame has over {MOST_PIXELS:,} pixels"
        return f"none for the motion ({bands}); first estimate: {self.start.describe()}"

    def pictures(self) -> list[FramePicture]:
        """Return the motion of the frame that was yielded last, and its expected error."""
        if self.used_motion is None:
            return []
        return drawing.pictures_of(self.used_motion, with_legend=True)

    @torch.no_grad()
    def frames(self, reader: Any, wanted: range, tick: Tick) -> Iterator[torch.Tensor]:
        """Yield the frames `wanted` of a clip, (3, H, W) float32 in [0, 1].

        reader: a data.clips.readers.DatasetClip. tick: called with the work done since the last
        call, in frames. For each frame its calls sum up to 1.
        """
        # Once for the whole clip: its planes, the gain of its spike pixels, and its bands.
        clip = RecordedClip(reader, self.context)
        gain_of_clip, is_good = clip.gain()  # (h, w) each, see `Seen` and `Area`
        areas = self._areas_of(clip.view, is_good)

        # The first estimates are a part of the work on each frame, the improvement is the rest.
        def tick_of_start(done: float) -> None:
            tick(FIRST_SHARE * done)

        # A generator: `start` computes an estimate when the loop asks for it.
        estimates = self.start.frames(reader, wanted, tick_of_start)
        for index, estimate in zip(wanted, estimates, strict=True):
            # A frame may take long on a CPU: tell the watchdog that the process still works.
            watchdog.go_on()
            z_0 = estimate.to(self.device).clamp(0, 1)
            recording = clip.read(index)
            by_change = share_by_change(recording, clip.view, is_good)
            nothing_moves = not by_change.any()
            if nothing_moves or self._keeps_first_estimate(recording, clip.view):
                frame = z_0
                self.used_motion = None
                tick(1 - FIRST_SHARE)
            else:
                # The motion is found on the whole frame, so it does not end at a border of a band.
                # The gain differs from the gain of the clip if the RGB camera changed its exposure.
                gain = clip.gain_in(recording, gain_of_clip)
                motion = self.find(recording, clip.view, gain)
                spikes = median_spikes(recording)
                moves = share_by_reach(motion, spikes) * by_change
                seen = Seen(recording, motion, gain, spikes, moves)
                frame = self._improved_frame(z_0, seen, areas, tick)
                self.used_motion = motion
            yield frame.cpu()

    def _areas_of(self, view: View, is_good: np.ndarray) -> list[Area]:
        """Divide the frames of a clip into areas. is_good: (h, w) bool, see `Area`."""
        areas = []
        for band in bands_of(view):
            pixels = SpikePixels(band.view, self.device) if band.has_spikes else None
            areas.append(Area(band, pixels, is_good=band.of_plane(is_good)))
        return areas

    def _keeps_first_estimate(self, recording: Recording, view: View) -> bool:
        """Say whether the spikes are of no help for a frame, so that its first estimate stays."""
        has_small_pixels = view.pixel_area < self.least_area
        is_nearly_dark = spikes_at_full_light(recording, view) < LEAST_SPIKES
        return has_small_pixels or is_nearly_dark or is_saturated(recording)

    def _improved_frame(self, z_0: Tensor, seen: Seen, areas: list[Area], tick: Tick) -> Tensor:
        """Return the improved frame (3, H, W). z_0: its first estimate, (3, H, W)."""
        improved = []
        for area in areas:
            improved.append(self._improved_rows(z_0, seen, area))
            watchdog.go_on()
            tick((1 - FIRST_SHARE) / len(areas))
        frame = joined(improved, [area.band for area in areas])
        # Keep the first estimate where nothing moves.
        return z_0 + torch.from_numpy(seen.moves).to(self.device) * (frame - z_0)

    def _improved_rows(self, z_0: Tensor, seen: Seen, area: Area) -> Tensor:
        """Return the improved rows (3, rows, W) of an area. z_0: (3, H, W), of the whole frame."""
        band = area.band
        z_0 = band.of_frame(z_0)
        if area.pixels is None:
            return z_0  # no spike pixel sees the band
        recording = band.of_recording(seen.recording)
        motion = band.of_motion(seen.motion)
        gain = band.of_plane(seen.gain)
        equations = Equations(
            recording, area.pixels, motion, gain, area.is_good, self.solver, self.device
        )
        return self.improve(z_0, Exposure(recording, equations, gain, seen.median_spikes))
