"""Restore the sharp frames of a clip along the motion that its spikes show.

main_test_vrt.py uses two methods of this module (they implement utils.contract.Method):

    JointMethod     `--method joint`: solves the equations of both cameras, without learning
    LearnedMotion   weights with the fusion "motion": takes learned steps on these equations

Both make a `MotionRestorer`, which goes through a clip frame by frame:

    start        makes the first estimate z_0, by a formula or a network
    find         finds the motion within the exposure (data.motion.flow or data.motion.learned)
    bands_of     cuts a large frame into bands of rows, which are solved alone (data.motion.bands)
    Equations    sets up the equations of both cameras along this motion (data.motion.joint)
    improve      turns z_0 into the sharp frame, with the equations

An exposure with too few spikes (`LEAST_SPIKES`), or with a saturated spike camera, keeps its first
estimate. So does each pixel that stands still (data.motion.stillness).

Sizes: a frame has H x W RGB pixels, and the spike camera h x w spike pixels. A plane is one binary
picture (h, w) of the spike camera.

What must stay:

* The keys of `settings`. An interrupted test continues only if its settings are equal.
* `MotionRestorer.frames` sets `used_motion` before it yields a frame. After each frame, the program
  calls `pictures()`, which draws this motion.

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
from data.motion.bands import MOST_PIXELS, Band, bands_of, join_pictures
from data.motion.flow import Motion, median_spikes, motion_of
from data.motion.joint import Equations, Solver, SpikePixels, guard_solution
from data.motion.learned import Finder, FinderName
from data.motion.recording import (
    RecordedClip,
    Recording,
    View,
    is_saturated,
    spikes_at_full_light,
)
from data.motion.stillness import share_by_change, share_by_reach, without_other_pictures
from utils.contract import FramePicture, Method, Tick
from utils.dist import watchdog
from utils.options.models import Count, Positive
from utils.options.section import Section, read_section

NAME = "joint"
# Least number of spikes that a pixel at full light must have in an exposure. With fewer spikes, the
# frame is the first estimate: the motion could not be found, and the learned steps would add
# structures that are not there. Gain of the learned steps over the first estimate, measured on
# clips of two videos, coffee and walker, which no training has seen:
#
#     spikes at full light    gain
#     2.3 to 2.6              +1.4 to +1.9 dB
#                             <- the limit, 1.2
#     0.6 to 1.0              -0.6 to +0.2 dB
#     0.3                     -3.5 to -1.6 dB
LEAST_SPIKES = 1.2
# The first estimate counts as this share of the work on a frame, about its share of the time. Only
# the progress display depends on it: with another value, the display would move less evenly.
FIRST_SHARE = 0.1


class JointOptions(Section):
    """The options of `--method joint`, e.g. `method.groups=8`.

    The names are keys of option files, so they must stay. All options but `type` and `context` are
    fields of `Solver`, with its defaults.
    """

    type: Literal["joint"] = NAME  # chooses this section among the sections of all methods
    # Number of planes that are read before and after an exposure. None: half as many as the
    # exposure has. Set 0 if there are gaps between the spike files of a clip. Otherwise planes from
    # after a gap would count as the planes that follow the exposure.
    context: Count | None = None
    # Largest number of groups into which the planes of an exposure are divided. All planes of a
    # group are taken to have the same motion, so with fewer groups a fast scene loses sharpness.
    groups: Positive = Solver.groups
    # Number of times that the equations are linearised, and number of steps of conjugate gradients
    # after each linearisation. More of them make the frame sharper and noisier.
    linearisations: Positive = Solver.linearisations
    steps: Positive = Solver.steps
    # Least standard deviation that is assumed for the error of a blurry pixel, in display values (0
    # to 1). The larger it is, the less the blurry frame counts beside the spikes. It is a divisor,
    # so it must be above 0.
    noise: float = Field(Solver.noise, gt=0)
    # The frame is a blend of the solution z and the first estimate z_0. With a and a_0 for their
    # squared errors, which the spikes tell,
    #
    #     weight of z = 1 / (1 + (a / (guard a_0))^2)        1/2 where a = guard a_0
    #
    # 0: the frame is z alone.
    guard: float = Field(Solver.guard, ge=0)


def joint_options(values: Mapping[str, Any]) -> JointOptions:
    """Return a section {"type": "joint", ...} with its defaults. Raises OptionError."""
    return read_section(JointOptions, values, where="method", kind='method "joint"')


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
        # Each frame is improved alone, so what `start` can do, this method can do: whether ranks
        # may share the frames of a clip, and whether only the middle frame of a clip is restored.
        self.can_cut = start.can_cut
        self.center_frame_only = start.center_frame_only

    def settings(self) -> dict[str, Any]:
        """Return everything that the frames depend on, as plain JSON."""
        return {"method": self.options.plain(), "start": self.start.settings()}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report."""
        # E.g. "groups 20, linearisations 3, ...". The context is left out if it is None, because
        # then no context was given.
        options = []
        for key, value in self.options.plain().items():
            if key != "type" and value is not None:
                options.append(f"{key} {value}")
        protocol = self.start.protocol()  # name of a line of the report -> its text
        # A formula has the line "method", e.g. "exposure". Its text becomes a part of the new line.
        # A network has no line "method", but the line "weights", which stays.
        first = protocol.pop("method", "the output of the weights")
        words = f"{NAME} ({', '.join(options)}), begun with {first}"
        return {"method": words, **protocol}

    def restorer(self, device: torch.device) -> "MotionRestorer":
        """Return the object that restores frames on a device. It finds motions by optical flow."""
        options = self.options
        solver = Solver(
            groups=options.groups,
            linearisations=options.linearisations,
            steps=options.steps,
            noise=options.noise,
            guard=options.guard,
        )
        start = self.start.restorer(device)
        return MotionRestorer(
            start,
            find=motion_of,
            solver=solver,
            improve=blended_solution,
            context=options.context,
            device=device,
            # The equations hold for spike pixels of any area. Only learned steps need a least area.
            least_area=0.0,
        )


# A network may have two sets of learned steps: for good light, and for few spikes. The steps for
# few spikes are used if a pixel of median light has fewer spikes than this in an exposure. The
# limit is the middle between 6 spikes, below which they are better, and 14 spikes, above which they
# may be worse. Measured on the clips coffee and walker: the gain of the steps for few spikes, minus
# the gain of the steps for good light. The last two rows have the same light, but other cameras.
#
#     spikes      cameras      difference of the gains
#     below 6     not ideal    +0.2 to +0.9 dB
#     16 to 18    not ideal    0 to +0.1 dB
#     above 14    ideal        down to -0.2 dB
FEW_SPIKES = 10.0

# Least area of a spike pixel, in RGB pixels. If spike pixels are smaller, the learned steps are not
# used. No area between 1/4 and 1 was measured. The limit is below 1, so that spike pixels that are
# as large as RGB pixels are not refused if the calibration is a little wrong.
#
#     area    learned steps
#     4       as in their training
#     1       gain as much as with 4
#     1/4     lose 2.5 dB: the frame gets grain and another brightness
LEAST_AREA = 0.6

# A function that takes the learned steps: (z_0, equations) -> z. z_0 and z are (3, rows, W), of a
# frame, or of the rows of a band.
Steps = Callable[[Tensor, Equations], Tensor]


@dataclass(frozen=True)
class LearnedParts:
    """The learned parts of a network on a device."""

    steps: Steps  # for good light
    few_steps: Steps  # for few spikes, see `FEW_SPIKES`
    find: Finder  # finds the motion within an exposure


# A function that improves a frame or a band: (z_0, all else that it may use) -> z. `MotionRestorer`
# calls it. There are two: `blended_solution` below, and `after_steps`, which chooses between two
# functions `Steps`.
Improvement = Callable[[Tensor, "AreaInputs"], Tensor]


class LearnedMotion:
    """A method (utils.contract.Method) that improves frames of a network by its learned steps.

    start: the method that makes the first estimates z_0 with the network.
    parts: function that puts the learned parts on a device and returns them.
    solver: settings of the equations.
    motion_by: what finds the motion: "dis" (an optical flow), "network" or "both". The value is
    only used for the report, because `parts` returns the function that finds the motion.
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
        # Each frame is improved alone, so what `start` can do, this method can do: whether ranks
        # may share the frames of a clip, and whether only the middle frame of a clip is restored.
        self.can_cut = start.can_cut
        self.center_frame_only = start.center_frame_only

    def settings(self) -> dict[str, Any]:
        """Return everything that the frames depend on, as plain JSON.

        The settings of `start` contain the digest of the weights file. The file has the learned
        steps and `motion_by`, so another key for them is not needed.
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

        def after_steps(z_0: Tensor, inputs: "AreaInputs") -> Tensor:
            """Return the frame after the learned steps for its light."""
            has_few_spikes = inputs.median_spikes < FEW_SPIKES
            steps = parts.few_steps if has_few_spikes else parts.steps
            return steps(z_0, inputs.equations)

        start = self.start.restorer(device)
        return MotionRestorer(
            start,
            find=parts.find,
            solver=self.solver,
            improve=after_steps,
            # Half an exposure, as in the training. A user cannot choose it: the option
            # `method.context` belongs to `--method joint`.
            context=None,
            device=device,
            least_area=LEAST_AREA,
        )


@dataclass(frozen=True)
class AreaInputs:
    """What a function `Improvement` may use besides z_0: recording and equations of an area.

    An area is a frame, or a band of a large frame (`Area`).

    If a new function needs one more value, add a field here. `MotionRestorer` fills in the fields.
    """

    recording: Recording
    equations: Equations
    gain: np.ndarray  # (h, w): spikes per plane of each spike pixel at full light
    median_spikes: float  # spikes of a pixel of median light in the exposure of the whole frame


def blended_solution(z_0: Tensor, inputs: AreaInputs) -> Tensor:
    """Return the solution z of the equations, blended with z_0, as (3, rows, W).

    The more squared error z has in a place, compared with z_0, the more z_0 counts there.
    """
    equations = inputs.equations
    z = equations.solve(z_0)
    # Beside the frame, `guard_solution` returns the weight of z in each pixel, which tests look at.
    frame, _ = guard_solution(
        z,
        z_0,
        recording=inputs.recording,
        pixels=equations.pixels,
        gain=inputs.gain,
        guard=equations.solver.guard,
    )
    return frame


class Area(NamedTuple):
    """A band with its spike pixels. All frames of a clip have the same areas.

    A frame that is not large is a single area.
    """

    band: Band
    pixels: SpikePixels | None  # what the spike pixels see of the band. None if none sees the band
    is_good: np.ndarray  # (h, w) bool: whether each spike pixel of the band can be trusted


class WholeFrame(NamedTuple):
    """What is known of a whole frame before its areas are improved one after the other."""

    recording: Recording
    motion: Motion  # within the exposure
    gain: np.ndarray  # (h, w): spikes per plane of each spike pixel at full light
    median_spikes: float  # spikes of a pixel of median light in the exposure
    # (H, W) in [0, 1]: 1 where a pixel moves for certain, 0 where it stands still. It is the weight
    # of the improved frame; the rest is the first estimate.
    moving_share: np.ndarray


class MotionRestorer:
    """Restores the frames of a clip on a device (utils.contract.FrameRestorer, ShowsPictures).

    start: restorer of the first estimates.
    find: function that finds the motion within an exposure.
    solver: settings of the equations.
    improve: function that makes a first estimate better.
    context: number of planes that are read before and after an exposure. None: half as many as the
    exposure has.
    least_area: least area of a spike pixel, in RGB pixels. If spike pixels are smaller, all frames
    keep their first estimate. 0: no area is too small.
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
        # What holds for the whole clip: the gain of each spike pixel (h, w), whether the pixel can
        # be trusted (h, w), and the bands into which frames are cut.
        clip = RecordedClip(reader, self.context)
        gain_of_clip, is_good = clip.gain()
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
            recording = clip.read(index).with_repaired_pixels(is_good)
            recording = without_other_pictures(recording, clip.view, is_good)
            # (H, W) in [0, 1]: 0 where the spikes change by noise alone.
            by_change = share_by_change(recording, clip.view, is_good)
            nothing_moves = not by_change.any()
            if nothing_moves or self._keeps_first_estimate(recording, clip.view):
                frame = z_0
                self.used_motion = None
                tick(1 - FIRST_SHARE)
            else:
                # The motion is found on the whole frame, so it does not end at a border of a band.
                # The gain differs from the gain of the clip if the RGB camera changed its exposure.
                gain = clip.gain_in(recording, gain_of_clip, is_good)
                motion = self.find(recording, clip.view, gain)
                spikes = median_spikes(recording)
                # A pixel moves if its motion is long enough, and if its spikes change.
                moving_share = share_by_reach(motion, spikes) * by_change
                whole = WholeFrame(recording, motion, gain, spikes, moving_share)
                frame = self._improved_frame(z_0, whole, areas, tick)
                self.used_motion = motion
            yield frame.cpu()

    def _areas_of(self, view: View, is_good: np.ndarray) -> list[Area]:
        """Divide the frames of a clip into areas, from the top to the bottom.

        is_good: (h, w) bool, whether each spike pixel of the whole plane can be trusted.
        """
        areas = []
        for band in bands_of(view):
            pixels = SpikePixels(band.view, self.device) if band.has_spikes else None
            areas.append(Area(band, pixels, is_good=band.of_plane(is_good)))
        return areas

    def _keeps_first_estimate(self, recording: Recording, view: View) -> bool:
        """Return whether the spikes do not help a frame, so that its first estimate stays."""
        has_small_pixels = view.pixel_area < self.least_area
        is_nearly_dark = spikes_at_full_light(recording, view) < LEAST_SPIKES
        return has_small_pixels or is_nearly_dark or is_saturated(recording)

    def _improved_frame(
        self, z_0: Tensor, whole: WholeFrame, areas: list[Area], tick: Tick
    ) -> Tensor:
        """Return the improved frame (3, H, W). z_0: its first estimate, (3, H, W)."""
        improved = []  # (3, rows, W) of each area
        for area in areas:
            improved.append(self._improved_rows(z_0, whole, area))
            watchdog.go_on()
            tick((1 - FIRST_SHARE) / len(areas))
        frame = join_pictures(improved, [area.band for area in areas])
        # Keep the first estimate where nothing moves.
        moving_share = torch.from_numpy(whole.moving_share).to(self.device)  # (H, W)
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
        # The median of the whole frame, and not of the band, decides which learned steps are taken:
        # so all bands of a frame get the same steps.
        inputs = AreaInputs(recording, equations, gain, whole.median_spikes)
        return self.improve(z_0_of_band, inputs)
