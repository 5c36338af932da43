"""The `spike` section of a dataset: how its spikes are read and turned into channels.

`DatSpikes` is what a section says of the spikes of one data set, or of one clip. It is used in two
phases:

    1. When the clips are listed: `exposures` decides which planes belong to each frame, and checks
       that they exist.
    2. For each sample: `read` reads these planes, and turns them into channels (S, H, W) on the
       pixels of the frame.

`DatSpikes` puts together what four other modules know:

    data/cameras/spike_info.py   dataset.json, and the planes of each frame (`Timing`)
    data/cameras/spike_grid.py   which RGB pixel belongs to which spike pixel
    data/spike/formats.py        spike files (read through an io backend of the data set)
    data/spike/represent.py      the functions that turn planes into channels

Words:

    plane           one read-out of the spike camera: a bit for each pixel
    context         planes that are read before and after the planes of a frame
    span            the planes of a frame without context, in one file (`Span`, spike_info.py)
    piece           successive planes of one file (`Piece`, data/clip.py)
    exposure        all planes that are read for a frame, as pieces (`Exposure`, data/clip.py)
    center          the plane of the sharp frame
    channel         one image of the S images that a network sees for a frame
    representation  how planes become channels, the option spike.representation
    grid, window    which spike pixel belongs to which pixel of a whole frame (`Grid`), and of a
                    crop of it (`Window`, spike_grid.py)
    rate            spikes per plane at full light
    light           the amount of light, linear
    display values  what a picture file holds: light to the power 1 / 2.2

What must stay, and which test notices (in tests/parts/data):

    test_dataset_video_rgbspike.py   The result of `read`, because it is what a network sees, and a
                                     resumed run must see the same numbers. So the order of the
                                     steps is fixed: planes, simulated camera, rate, representation,
                                     RGB grid.
    test_spike_source.py             The arguments of `DatSpikes`, because they are keys of option
                                     files. A new argument needs a default that changes nothing.
    test_spike_info.py               The planes of each frame, and the errors for wrong planes.
"""

import copy
import dataclasses
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import cv2
import numpy as np
from pydantic import Field

from data.augment import Augment, CameraDraw
from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.calibration import Calibration, load_calibration
from data.cameras.dataset_info import DatasetInfo
from data.cameras.exposures import read_exposures
from data.cameras.frame_times import FrameTimes
from data.cameras.scaled_grid import ScaledGrid
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_grid import Grid, Window
from data.cameras.timing import Span, Timing
from data.clip import Clip, Exposure, Piece
from data.spike import represent as rp
from data.spike.errors import SpikeFileError
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import DISPLAY_GAMMA, LUMA, to_linear
from utils.errors import DataError, OptionError
from utils.options.section import Registry, import_parts

logger = logging.getLogger(__name__)

# Display value 0 ... 255 -> linear light 0 ... 1, (256,) float32.
DISPLAY_TO_LIGHT = to_linear(np.arange(256, dtype=np.float32) / 255.0)
# `DatSpikes.sharp_image` averages the channels near the sharp moment. A channel is near if its
# distance from the sharp moment, in planes, is at most the smallest distance plus this number.
#
# A channel of a "proportional" representation is proportional to the light, so it is a picture.
# Then only the nearest channel is taken, or the two channels on both sides of the sharp moment.
# The distances of these two differ by half a plane of rounding at most. A larger number would blur
# the picture.
MORE_PLANES_IF_PROPORTIONAL = 0.51
# A channel of another representation is a single plane, with too few spikes for a picture. So
# channels up to 10 planes further away are averaged. Fewer give more noise, more give more blur.
MORE_PLANES_ELSE = 10
# `spike.rate` "match" divides the mean firing rate by the mean brightness of the frame. A smaller
# firing rate counts as LEAST_FIRING_RATE, and a smaller brightness as LEAST_BRIGHTNESS. So planes
# without a spike give no rate of 0, and a black frame gives no division by 0. If anything can be
# seen in a clip, its values are far above the limits. Larger limits would change the channels of
# dim clips.
LEAST_FIRING_RATE = 1e-4  # spikes per plane
LEAST_BRIGHTNESS = 1e-3  # of 1

# Values of `spike.representation.type` and of `spike.type`.
REPRESENTATIONS = Registry("spike representation", "type")
SPIKE_SOURCES = Registry("spike source", "type")

# Files data/spike/represent_*.py of a user add representations when they are imported. The options
# of a representation are the parameters of its function, without `stream` and `center`, because the
# program itself gives these two.
import_parts("data.spike", "represent_*")
for _name, _representation in rp.REPRESENTATIONS.items():
    REPRESENTATIONS.register(_name, given=("stream", "center"))(_representation.function)


class _NearbyFile(NamedTuple):
    """The file of a frame, or the file before or after it in time.

    Planes are counted from the first plane of the file of the frame. So with 56 planes in each
    file, the three files have the planes -56 ... -1, 0 ... 55 and 56 ... 111.
    """

    path: str
    begin: int  # number of the first plane
    end: int  # number after the last plane


class _FileCalibration(NamedTuple):
    """A calibration that a file holds: the file of spike.calibration, or dataset.json."""

    calibration: Calibration
    path: str  # of the file, for messages


class _Representation(NamedTuple):
    """The section spike.representation, after it was read."""

    name: str  # e.g. "voxel"
    options: dict[str, Any]  # arguments of the function of this name in data/spike/represent.py
    # Keys of the section spike that change nothing with these options. Setting one is an error.
    without_effect: frozenset[str]


# The section `spike` gives the arguments of `__init__`, and the program adds `info`. The fields are
# other values than the arguments, so `__init__` is written by hand (init=False). Many clips share
# one object, so sets and dicts compare objects by identity (eq=False).
@SPIKE_SOURCES.register("dat", given=("info",))
@dataclass(frozen=True, init=False, eq=False, repr=False)
class DatSpikes:
    """Spike files: packed planes (.dat, .bin) or arrays (.npy, .npz), one per frame or per clip.

    The arguments are the keys of the section `spike`.

    h, w, flip, rate, light: null takes the value of dataset.json. A value that differs from
    dataset.json is an error.
    h, w: height and width of a plane. If dataset.json lacks them too, the calibration file gives
    them.
    flip: whether rows are stored bottom first.
    rate: spikes per plane at full light, 1 if it is given nowhere. "match" measures the rate from
    the brightness of the blurry frame.
    light: what the sensor integrated, "linear" light (the default) or "display" values.

    head_columns: number of columns without image at the end of each line.
    bit_order: "little" if the first pixel is the least significant bit of a byte, "big" if it is
    the most significant bit.
    layout: "sps100" for files of an SPS100 sensor, "raster" for all others.
    remainder: "truncate" ignores bytes after the last whole plane, "error" refuses them.

    first, count: the planes that are read of each file; with first "central", the planes in its
    middle.
    exposure: the planes of each frame, if one file holds a whole clip: e.g. {"start": 0, "length":
    20, "period": 25}, or the name of a JSON file with this. `read_exposures` lists all forms.
    context: number of planes that are read before and after the planes of a frame.
    center: the plane of the sharp frame: "gt" (from dataset.json), "file" (the middle of the planes
    that are read) or a number.

    gamma: gamma of the channels. 1 gives linear light, 2.2 gives display values. Channels that are
    ratios of two lights are raised to the same power, 1 / gamma.
    resize: interpolation to the RGB grid. "nearest" keeps the values of raw planes at 0 and 1.
    calibration: a file of scripts/calibrate.py. "recorded" uses the calibrations of dataset.json,
    and takes a clip without a calibration as aligned with its frames. "auto" estimates the
    calibration of each clip from its own frames and spikes.
    A key that has no effect on the chosen representation is an error.

    An object never changes, because clips and loader processes share it. `changed` makes a copy.
    """

    info: DatasetInfo
    geometry: SpikeGeometry
    rate: float | Literal["match"]
    light: Literal["linear", "display"]
    timing: Timing
    context: int
    center: Literal["gt", "file"] | int
    remainder: Literal["error", "truncate"]
    gamma: float
    interpolation: int  # a constant of OpenCV
    calibration: Calibration | None
    calibrated_grid: CalibratedGrid | None  # the grid that `calibration` gives
    is_auto: bool  # whether data/cameras/self_calibration.py gives each clip its own calibration
    name: str  # of the representation
    options: dict[str, Any]  # of the representation
    channels: int  # S
    # Keys of the section that change nothing with this representation. Setting one is an error.
    without_effect: frozenset[str]
    # Whether light and rate are known: the section or dataset.json gives the value, or the
    # representation does not need it.
    is_light_known: bool
    is_rate_known: bool
    is_stretched: bool  # whether planes are stretched to frames of another ratio of height to width

    def __init__(
        self,
        info: DatasetInfo,
        h: int | None = None,
        w: int | None = None,
        flip: bool | None = None,
        head_columns: int = 0,
        bit_order: Literal["little", "big"] = "little",
        layout: Literal["raster", "sps100"] = "raster",
        first: Annotated[int, Field(ge=0)] | Literal["central"] = 0,
        count: Annotated[int, Field(ge=1)] | None = None,
        exposure: dict[str, Any] | str | None = None,
        context: Annotated[int, Field(ge=0)] = 0,
        rate: Annotated[float, Field(gt=0)] | Literal["match"] | None = None,
        light: Literal["linear", "display"] | None = None,
        center: Literal["gt", "file"] | int = "gt",
        remainder: Literal["error", "truncate"] = "error",
        gamma: Annotated[float, Field(ge=0.1, le=10)] = 1.0,
        resize: Literal["bilinear", "nearest"] = "bilinear",
        calibration: str | None = None,
        representation: Annotated[dict[str, Any] | str, REPRESENTATIONS] = "voxel",
    ) -> None:
        # Read the keys, and compare them with dataset.json. The first wrong key raises an error.
        from_file = _file_calibration(calibration, info)  # None without a calibration file
        geometry = _agreed_geometry(info, from_file, h, w, flip, head_columns, bit_order, layout)
        _refuse_exposure_with_window(exposure, first, count)
        chosen = _read_representation(representation)
        known_rate = _agreed_rate(rate, info)

        # Set the fields. Light and rate are known if somebody gave them, or if nobody needs them.
        is_light_given = light is not None or info.light is not None
        is_rate_given = rate is not None or info.rate is not None
        self._set(
            info=info,
            geometry=geometry,
            rate=known_rate,
            light=_agreed_value("light", light, info, default="linear"),
            timing=Timing(first, count, read_exposures(exposure)),
            context=context,
            center=center,
            remainder=remainder,
            gamma=gamma,
            interpolation=cv2.INTER_LINEAR if resize == "bilinear" else cv2.INTER_NEAREST,
            calibration=None,
            calibrated_grid=None,
            is_auto=calibration == "auto",
            name=chosen.name,
            options=chosen.options,
            channels=channels_of(representation),
            without_effect=chosen.without_effect,
            is_light_known="light" in chosen.without_effect or is_light_given,
            is_rate_known="rate" in chosen.without_effect or is_rate_given,
            is_stretched=False,
        )
        if from_file:
            self._calibrate(from_file.calibration, from_file.path)

        # Refuse keys without effect. Key -> whether the section sets it to another value than its
        # default.
        is_set = {
            "rate": rate is not None,
            "light": light is not None,
            "gamma": gamma != 1.0,
            "center": center != "gt",
            "context": context > 0,
        }
        with_options = f"{chosen.name} with {chosen.options}"
        _refuse_keys_without_effect(is_set, chosen.without_effect, with_options)

    def _set(self, **values: Any) -> None:
        """Set fields of a new object. Call this only for an object that nobody else has yet.

        The class is frozen, so `self.rate = 1` is refused. vars() goes around the refusal.
        """
        vars(self).update(values)

    def _calibrate(self, calibration: Calibration, path: str) -> None:
        """Set the fields of a new object that follow from a calibration.

        path: file of the calibration, for messages.
        Raises DataError if the calibration holds for planes of another size.
        """
        is_nearest = self.interpolation == cv2.INTER_NEAREST
        # offset: how many planes later the spike camera shows a moment than the frame does.
        # share: the fraction of the planes of a frame that is read.
        timing = dataclasses.replace(
            self.timing,
            offset=calibration.time_offset_planes,
            share=calibration.share_to_read,
        )
        calibrated_grid = CalibratedGrid(calibration, self.geometry, path, is_nearest)
        self._set(calibration=calibration, calibrated_grid=calibrated_grid, timing=timing)

    def changed(self, calibration: Calibration | None = None, **fields: Any) -> "DatSpikes":
        """Return a copy with other values.

        calibration: a calibration that was found from the clip. It replaces the present one.
        fields: fields of this class, such as context or center.
        """
        names = {field.name for field in dataclasses.fields(self)}
        wrong_names = fields.keys() - names
        if wrong_names:
            raise TypeError(f"DatSpikes has no {', '.join(sorted(wrong_names))}")
        other = copy.copy(self)
        other._set(**fields)
        if calibration:
            # There is no file, so messages name the option.
            other._calibrate(calibration, path="spike.calibration auto")
        return other

    def of_exposure(self, context: int) -> "DatSpikes":
        """Return a copy that reads only the planes during which a frame was exposed, and context.

        A calibration has two shares (fractions) of the planes of a frame:

            exposure_share   the planes during which the frame was exposed
            share_to_read    the planes that channels are made of: a few more

        The copy reads the planes of `exposure_share`. data/motion/recording.py calls this, because
        it finds the motion within the exposure from exactly these planes.

        context: number of planes that are read before and after the planes of the exposure.
        """
        timing = self.timing
        # Without a calibration, all planes of a frame are read in both cases.
        if self.calibration:
            timing = dataclasses.replace(timing, share=self.calibration.exposure_share)
        return self.changed(context=context, timing=timing)

    def grid(self, size: tuple[int, int]) -> Grid:
        """Return which spike pixel belongs to which pixel of blurry frames of `size` (H, W).

        Raises DataError if the sizes do not fit.
        """
        if self.calibrated_grid is None:
            return ScaledGrid(self.geometry, size, self.interpolation, self.is_stretched)
        self.calibrated_grid.check_size(size)
        return self.calibrated_grid

    # ---- The planes of each frame -----------------------------------------------------------

    def exposures(
        self,
        clip: str,
        files: list[tuple[str, int]],
        frames: int,
        times: FrameTimes | None = None,
    ) -> tuple[Exposure, ...]:
        """Return the planes of each frame of a clip.

        clip: name of the clip.
        files: (path, number of planes) of each spike file: a file for each frame, or one file.
        frames: number of frames.
        times: when the frames were taken. None: not known. They are used if one file holds the
        planes of all frames, and the option spike.exposure does not list the planes of each frame.

        The planes are checked: their file has them, and the representation can be made of them.
        Raises OptionError if the plane of the sharp frame is unknown, and DataError for planes that
        do not fit.

        Everything that can be wrong with the planes is found here, before a run starts. `read`
        relies on this check.
        """
        is_one_file = len(files) == 1
        # (first plane, plane after the last) of each frame in the one file.
        ranges = None
        if times and is_one_file:
            _, planes = files[0]
            ranges = self.plane_ranges(clip, planes, times)

        exposures = []
        tried = set()  # pairs (number of planes, center) for which the representation was tried
        for frame in range(frames):
            file_index = 0 if is_one_file else frame
            _, planes = files[file_index]
            span = self.timing.span(clip, frame, planes, ranges)
            exposure = self._exposure(clip, files, file_index, span)
            exposures.append(exposure)

            # Try whether the representation can be made of the planes. A trial takes longer than
            # the rest of this loop. Most exposures have an equal number of planes and an equal
            # center, so each pair of these two is tried once.
            count_and_center = (span.count, exposure.center)
            if count_and_center not in tried:
                tried.add(count_and_center)
                self._refuse_too_few_planes(exposure)
        return tuple(exposures)

    def _exposure(
        self, clip: str, files: list[tuple[str, int]], file_index: int, span: Span
    ) -> Exposure:
        """Return the planes of one frame, with their context.

        files: (path, number of planes) of each spike file of the clip.
        file_index: index in `files` of the file with the planes `span`.
        Raises OptionError if the plane of the sharp frame is unknown.
        """
        path, _ = files[file_index]
        # There are two ways to count planes:
        #     `_center`           as options and dataset.json count: from the first plane of the
        #                         file, or of the exposure if one file holds the whole clip
        #     `Exposure.center`   from the first plane of the span
        # The first plane of the span has the number `span.origin` as options count. E.g. the first
        # 14 planes of a file are not read, so origin is 14. Plane 27.5 becomes 27.5 - 14 = 13.5.
        center = self._center(clip, span) - span.origin
        planes_before, pieces = self._with_context(files, file_index, span)
        return Exposure(
            own=Piece(path, span.first, span.count),
            pieces=pieces,
            before=planes_before,
            center=center,
            origin=span.origin,
        )

    def plane_ranges(
        self, clip: str, planes: int, times: FrameTimes
    ) -> list[tuple[int, int]] | None:
        """Return (first plane, plane after the last) of each frame of a clip with one spike file.

        planes: number of planes of the file. times: when the frames were taken.
        Returns None if spike.exposure lists the planes of each frame.
        """
        tick_hz = self.calibration.tick_hz if self.calibration else None
        return self.timing.plane_ranges(clip, planes, times, tick_hz)

    def _with_context(
        self, files: list[tuple[str, int]], file_index: int, span: Span
    ) -> tuple[int, tuple[Piece, ...]]:
        """Return the number of context planes before a frame, and all planes to read for the frame.

        `context` planes are wanted before and after the planes of the frame. The files follow one
        another in time, so context planes may lie in the file before and the file after. If no file
        has them, fewer planes are read.

        E.g. each file has 56 planes, which all belong to its frame, and the context is 8. Then the
        planes are 48 ... 55 of the file before, 0 ... 55 of the file of the frame, and 0 ... 7 of
        the file after.

        files: (path, number of planes) of each spike file of the clip.
        file_index: index in `files` of the file with the planes of the frame.

        test_context_of_a_file_per_frame_is_in_the_files_beside notices wrong planes.
        """
        # Up to three files, in the order of time. With one file for all frames, only this file.
        path, planes = files[file_index]
        nearby_files = [_NearbyFile(path, begin=0, end=planes)]
        if file_index > 0:
            path_before, planes_before = files[file_index - 1]
            nearby_files.insert(0, _NearbyFile(path_before, begin=-planes_before, end=0))
        if file_index + 1 < len(files):
            path_after, planes_after = files[file_index + 1]
            nearby_files.append(_NearbyFile(path_after, planes, planes + planes_after))

        # Wanted are the planes `wanted_from` ... `wanted_end` - 1: -8 ... 63 in the example. Take
        # the part of them that each file has.
        wanted_from = span.first - self.context
        wanted_end = span.first + span.count + self.context
        pieces = []
        for file in nearby_files:
            first = max(wanted_from, file.begin)
            end = min(wanted_end, file.end)
            if first < end:
                # A piece counts from the first plane of its own file.
                pieces.append(Piece(file.path, first=first - file.begin, count=end - first))

        # The context before the frame is shorter than wanted if the first of the nearby files
        # begins too late. It has at most the planes from the begin of this file to the frame.
        context_before = min(self.context, span.first - nearby_files[0].begin)
        return context_before, tuple(pieces)

    def _center(self, clip: str, span: Span) -> float:
        """Return the plane of the sharp frame, counted as dataset.json counts planes.

        dataset.json counts from the first plane of the file, or of the exposure if one file holds
        the whole clip. So the first plane that is read has the number `span.origin`. A result such
        as 27.5 lies between two planes.

        Raises OptionError if the plane is unknown, or outside of the planes that are read.
        """
        last = span.origin + span.count - 1
        # A representation that ignores the center gets the middle of the planes that are read. The
        # middle of all planes of the frame, `span.middle`, may be a plane that the file lacks.
        if "center" in self.without_effect:
            return (span.origin + last) / 2
        if self.center == "gt":
            # `span.length` counts all planes of the frame, also the planes that are not read.
            center = self.info.gt_plane_of(clip, span.length)
        elif self.center == "file":
            center = span.middle
        else:
            center = self.center
        if center is None:
            raise _unknown_center(clip, "is not known")
        if not span.origin <= center <= last:
            raise _unknown_center(clip, f"{center} is outside of {span.origin} to {last}")
        return center

    def _refuse_too_few_planes(self, exposure: Exposure) -> None:
        """Raise DataError if the representation cannot be made of the planes of an exposure.

        The representation is tried on one pixel without spikes, and without context planes. A clip
        must pass without context, because its first frame has no context before it.
        """
        count = exposure.own.count
        center = exposure.center
        one_pixel = np.zeros((count, 1, 1), np.uint8)
        try:
            self.represent(one_pixel, center, rate=1.0)
        except ValueError as e:
            # A representation raises ValueError if its windows do not fit into the planes.
            raise DataError(
                what=f"{count} planes are too few for spike.representation {self.name}: {e}",
                where=exposure.own.file,
                expected=f"planes for {self.options} around plane {center:g}",
                do="use smaller windows, or another spike.center",
            ) from e

    # ---- From planes to channels ------------------------------------------------------------

    def read(
        self,
        files: Any,
        clip: Clip,
        frame: int,
        aug: Augment,
        image: np.ndarray,
        reverse: bool = False,
        camera: CameraDraw | None = None,
    ) -> np.ndarray:
        """Read the channels of one frame within the crop of `aug`. They are not flipped.

        The order of the steps must stay, because the channels are what a network was trained with:
        planes, simulated camera, rate, representation, RGB grid.

        files: an io backend of the data set, which reads the spike files.
        clip: the clip, with the exposures of its frames. frame: number of the frame in the clip.
        aug: the crop of the frame. Only its place and size are used here.
        image: the crop of the blurry frame, (aug.height, aug.width, 3) uint8, B, G, R.
        reverse: whether the clip is played backwards.
        camera: a simulated camera, which changes the recorded spikes. None: they stay as recorded.

        Returns (S, aug.height, aug.width) float32. The result is equal to the crop of the channels
        of the whole frame, although only the spike pixels that the crop needs are unpacked.
        """
        # Read the planes of the frame with their context. `window.crop` are the spike pixels that
        # the crop of the frame needs.
        window = clip.grid.window(aug)
        exposure = clip.exposures[frame]
        with spike_errors_as_data_errors():
            pieces = [files.stream(clip, piece, window.crop) for piece in exposure.pieces]
        stream = np.concatenate(pieces)  # (context before + planes of the frame + after, h, w)
        if camera:
            stream = camera.apply(stream, frame)

        # The rate is measured in the planes of the frame. The channels may use the context too.
        context_before = exposure.before
        count = exposure.own.count
        context_after = len(stream) - context_before - count
        planes_of_frame = stream[context_before : context_before + count]
        rate = self.rate_of(planes_of_frame, image, window)
        # A rate of the options is the rate of the real camera. The simulated camera fires more or
        # less often, by the factor `known_rate_factor`. With "match" the rate was measured in the
        # spikes of the simulated camera, so it needs no factor.
        if camera and self.rate != "match":
            rate *= camera.known_rate_factor
        # Positional arguments: a user's subclass may name them differently.
        context = (context_before, context_after)
        channels = self.represent(stream, exposure.center, rate, reverse, context)
        return window.to_rgb(channels)

    def rate_of(self, stream: np.ndarray, image: np.ndarray, window: Window) -> float:
        """Return the spikes per plane at full light.

        stream: the planes of a frame (T, h, w).
        image: the blurry frame at the same place, (H, W, 3) uint8, B, G, R.
        window: which spike pixel lies at which RGB pixel.

        With rate "match" the rate is measured: the mean firing rate divided by the mean brightness
        of the blurry frame. For example, 0.2 spikes per plane at brightness 0.4 give the rate 0.5.
        The division is right because both cameras recorded the same light during the exposure: the
        frame as display values of gamma 2.2, the spikes as `light` says. The rate contains the
        threshold and the gain of the spike camera, so nobody needs to know these two.
        """
        if self.rate != "match":
            return self.rate
        # The frame in the unit that the sensor integrated, and full light in this unit.
        if self.light == "display":
            values = image
            full_light = 255.0
        else:
            values = cv2.LUT(image, DISPLAY_TO_LIGHT)
            full_light = 1.0
        # Over the pixels that both cameras see: the mean firing rate, and the mean (B, G, R) of the
        # frame.
        firing_rate, mean_bgr = window.brightness(stream, values)
        luma_bgr = LUMA[::-1]  # LUMA is for R, G, B
        brightness = float(mean_bgr @ luma_bgr) / full_light
        return max(firing_rate, LEAST_FIRING_RATE) / max(brightness, LEAST_BRIGHTNESS)

    def represent(
        self,
        stream: np.ndarray,
        center: float,
        rate: float,
        reverse: bool = False,
        outside: tuple[int, int] = (0, 0),
    ) -> np.ndarray:
        """Turn a stream (T, h, w) of one frame, in the order of recording, into (S, h, w) float32.

        center: the plane of the sharp frame, counted from the first plane of the frame.
        rate: spikes per plane at full light. reverse: whether the clip is played backwards.
        outside: numbers of context planes in the stream, (before, after) the planes of the frame.

        A user's subclass may override this method (docs/extending.md), so its arguments stay.
        """
        before, _ = outside
        return rp.represent(
            self.name,
            stream,
            center + before,  # counted from the first plane of the stream
            reverse=reverse,
            rate=rate,
            light=self.light,
            gamma=self.gamma,
            outside=outside,
            **self.options,
        )

    # ---- What the channels show -------------------------------------------------------------

    def sharp_image(
        self, channels: np.ndarray, exposure: Exposure, reverse: bool = False
    ) -> np.ndarray:
        """Return what the channels (S, H, W) of a frame show of the sharp moment.

        Returns display values (H, W) float32, >= 0: the mean of the channels nearest to the moment.
        Ratios to the light of the exposure are turned into light. The picture is for people (panels
        and scripts), so its details may change.
        """
        if self.name == "relative":
            return self._image_of_ratios(channels)
        nearest = self._nearest_channels(exposure, reverse)  # e.g. [1, 2] of four bins
        nearest_channels = channels[nearest]  # (n, H, W)
        image = np.maximum(nearest_channels.mean(axis=0), 0)
        # The mean of single planes (not proportional) is a firing rate, in the unit that the sensor
        # integrated. If this unit is display values, nothing is left to do.
        is_proportional = rp.REPRESENTATIONS[self.name].proportional
        if not is_proportional and self.light == "display":
            return image
        # Channels are light to the power 1 / gamma, display values light to the power 1 / 2.2.
        return image ** (self.gamma / DISPLAY_GAMMA)

    def _image_of_ratios(self, channels: np.ndarray) -> np.ndarray:
        """Return `sharp_image` of the representation "relative".

        Its channels are

            r   for each window, the light of the sharp moment divided by the light of the exposure
            c   the last channel, a confidence n / (n + a), where n is the number of spikes in the
                exposure and a is a constant

        The light of the exposure is proportional to n, so the light of the sharp moment is
        proportional to r * n. From c follows n = a * c / (1 - c). So the result is r * c / (1 - c),
        divided by its brightest pixel. The constant a has no effect.
        """
        # Of several windows, take the channel of the window with the middle length: of the
        # half_windows (12, 2, 6), channel 2.
        by_length = np.argsort(self.options["half_windows"])
        middle_window = by_length[len(by_length) // 2]
        # The sensor integrated light to the power 1 / power: display values, or light itself. For
        # the option gamma, `represent` has raised all channels to the power `power / gamma`. Undo
        # this, so that r and c are again what was computed from the spikes.
        power = DISPLAY_GAMMA if self.light == "display" else 1.0
        exponent = self.gamma / power
        channels = channels.astype(np.float64)  # the confidence may be close to 1
        ratio = np.maximum(channels[middle_window], 0) ** exponent
        # At most 0.999, because the light below is divided by 1 - c, and c = 1 would make it
        # infinite.
        confidence = np.clip(channels[-1], 0, 0.999) ** exponent
        light = ratio * confidence / (1 - confidence)  # r * c / (1 - c)
        brightest = max(light.max(), 1e-9)  # not 0, because it is a divisor
        # To display values: light to the power 1 / 2.2. Display values stay as they are.
        return (light / brightest) ** (power / DISPLAY_GAMMA)

    def _nearest_channels(self, exposure: Exposure, reverse: bool) -> list[int]:
        """Return the indices of the channels nearest to the sharp moment."""
        # Some representations have the option `offsets`: the distance of each channel from the
        # sharp moment, in planes. The representation does not use `offsets` if `num_bins` is given.
        offsets = self.options.get("offsets")
        if offsets and self.options.get("num_bins") is None:
            return [int(np.argmin(np.abs(offsets)))]

        # The mean distance (S,) of the planes of a channel from the sharp moment. A plane counts
        # with its weight in the channel.
        weights = self._weights_of_planes(exposure, reverse)  # (S, T)
        distances = np.abs(np.arange(exposure.own.count) - exposure.center)  # (T,)
        sum_of_weights = np.maximum(weights.sum(axis=1), 1e-9)  # not 0, because it is a divisor
        mean_distance = (weights @ distances) / sum_of_weights

        more_planes = MORE_PLANES_ELSE
        if rp.REPRESENTATIONS[self.name].proportional:
            more_planes = MORE_PLANES_IF_PROPORTIONAL
        is_near = mean_distance <= mean_distance.min() + more_planes
        return np.flatnonzero(is_near).tolist()

    def _weights_of_planes(self, exposure: Exposure, reverse: bool) -> np.ndarray:
        """Return the weight of each of the T planes in each of the S channels, (S, T).

        The weights are found by a trial: in a stream of one row of T pixels, pixel t fires only in
        plane t. Then channel s of pixel t is the weight of plane t in channel s.
        """
        planes = exposure.own.count  # T
        impulses = np.eye(planes, dtype=np.uint8)[:, None]  # (T, 1, T)
        channels = rp.represent(
            self.name, impulses, exposure.center, reverse=reverse, **self.options
        )  # (S, 1, T)
        return channels[:, 0]


# ---- Sections to sources ---------------------------------------------------------------------


def user_spikes(
    section: Any, trained: dict[str, Any] | None, info: DatasetInfo, clip: str
) -> DatSpikes:
    """Return how a user's spikes are read for a trained network. Log a warning of what is assumed.

    section: the spike section of the network.
    trained: `ClipDataset.spike_data` of the training, such as {"rate": 0.5, "light": "linear"}.
    None: it is not known.
    info: what is known of the user's spikes. clip: name of the clip, for the warnings.

    If the user and dataset.json do not give the light, the light of the training is taken. If they
    do not give the rate, the rate is measured ("match"). But if the training had no rate either,
    the network learned from firing rates that were not divided by a rate. Then the rate is 1.
    """
    source = SPIKE_SOURCES.build(section, "spike", info=info)
    _warn_if_taken_as_aligned(source, trained, clip)
    # A representation that ignores the light ignores the rate too, so nothing must be assumed.
    if "light" in source.without_effect:
        return source

    light = section.light or info.light
    if light is None and trained:
        light = trained.get("light")
    changes = {"light": light}
    if not source.is_rate_known:
        # If the training had no rate, the rate stays 1, its default.
        if trained is not None and trained["rate"] is not None:
            changes["rate"] = "match"
            rate_in_words = (
                f"measured from the brightness of the frames, which show {light} light as in "
                "training (spike.rate=match)"
            )
        else:
            rate_in_words = (
                "taken as 1, as for a network that learned from undivided firing rates of the same "
                "camera"
            )
        logger.warning(
            "spikes of %s: the firing rate at full light is not known and %s; give spike.rate if "
            "you know it",
            clip,
            rate_in_words,
        )
    return SPIKE_SOURCES.build(section.model_copy(update=changes), "spike", info=info)


def _warn_if_taken_as_aligned(source: DatSpikes, trained: dict[str, Any] | None, clip: str) -> None:
    """Warn if the user's spikes have no calibration, but the spikes of the training had one.

    source: how the spikes are read. clip: name of the clip, for the warning.
    trained: properties of the training spikes. None: they are not known.
    """
    is_calibrated = source.calibration or source.is_auto
    if trained is None or is_calibrated:
        return
    if trained.get("calibration"):
        logger.warning(
            "spikes of %s: taken as aligned with the frames; the network was trained on those of a "
            "second camera: give spike.calibration if these are, too",
            clip,
        )


def channels_of(representation: Mapping[str, Any] | str) -> int:
    """Return S, the number of channels, of a section spike.representation.

    representation: the section, or the name of a representation alone.
    Raises OptionError for options that contradict one another.
    """
    options = REPRESENTATIONS.resolve(representation, "spike.representation").plain()
    name = options.pop("type")
    try:
        return rp.channel_count(name, **options)
    except ValueError as e:
        raise OptionError(
            what=f"spike.representation {name} cannot be made: {e}",
            where="spike.representation",
            expected=str(inspect.signature(rp.REPRESENTATIONS[name].function)),
            do="correct its options",
        ) from e


def _file_calibration(option: str | None, info: DatasetInfo) -> _FileCalibration | None:
    """Return the calibration that the key `calibration` names. Raises DataError.

    Returns None if the spikes are taken as aligned with the frames, and for "auto": then
    data/cameras/self_calibration.py finds a calibration later, and calls `DatSpikes.changed`.
    """
    if option is None or option == "auto":
        return None
    if option != "recorded":
        return _FileCalibration(load_calibration(option), option)
    # "recorded", and dataset.json has no calibration: the clip is taken as aligned.
    if not info.calibration:
        return None
    return _FileCalibration(load_calibration(info.path, info.calibration), info.path)


def _agreed_geometry(
    info: DatasetInfo,
    from_file: _FileCalibration | None,
    h: int | None,
    w: int | None,
    flip: bool | None,
    head_columns: int,
    bit_order: Literal["little", "big"],
    layout: Literal["raster", "sps100"],
) -> SpikeGeometry:
    """Return the form of a plane. Raises OptionError for wrong sizes.

    from_file: the calibration of a file, or None. The other arguments are those of `DatSpikes`.
    """
    # A calibration file has the size of its spike planes. This size is taken only if neither the
    # section nor dataset.json has a size. If they have another size, `DatSpikes._calibrate` refuses
    # the calibration later.
    calibrated_height = calibrated_width = None
    if from_file:
        calibrated_height, calibrated_width = from_file.calibration.spike_size
    # The default of `flip`: rows are stored bottom first, except in files of an SPS100.
    stored_bottom_first = layout == "raster"
    height = _agreed_value("h", h, info, default=calibrated_height)
    width = _agreed_value("w", w, info, default=calibrated_width)
    flipud = _agreed_value("flip", flip, info, default=stored_bottom_first)
    try:
        return SpikeGeometry(height, width, flipud, head_columns, bit_order, layout)
    except SpikeFileError as e:
        # This error names no options, so raise an error that names them.
        where = "spike.h, spike.w, spike.head_columns"
        raise OptionError(e.what, where, e.expected, "correct them") from e


def _read_representation(section: Mapping[str, Any] | str) -> _Representation:
    """Read the section spike.representation. Raises OptionError.

    section: the section, or the name of a representation alone.
    """
    options = REPRESENTATIONS.resolve(section, "spike.representation").plain()
    name = options.pop("type")
    without_effect = frozenset(rp.REPRESENTATIONS[name].ignored(**options))
    return _Representation(name, options, without_effect)


def _agreed_rate(
    rate: float | Literal["match"] | None, info: DatasetInfo
) -> float | Literal["match"]:
    """Return the rate: the option, else the value of dataset.json, else 1.

    "match" measures the rate of each frame, so it is not compared with dataset.json. Raises
    OptionError if a number differs from dataset.json.
    """
    if rate == "match":
        return rate
    return float(_agreed_value("rate", rate, info, default=1.0))


def _agreed_value(key: str, option: Any, info: DatasetInfo, default: Any = None) -> Any:
    """Return the value of a key: the option, else the value of dataset.json, else the default.

    Raises OptionError if option and dataset.json differ, or if there is no value.
    """
    recorded = getattr(info, key)  # None if dataset.json does not have the key
    if option is not None and recorded is not None and option != recorded:
        raise OptionError(
            what=f"spike.{key} is {option}, dataset.json has {recorded}",
            where=info.path,
            expected=f"the same {key} in both",
            do=f"remove spike.{key}, or correct dataset.json",
        )
    for value in (option, recorded, default):
        if value is not None:
            return value
    raise OptionError(
        what=f"spike.{key} is missing",
        where=f"spike.{key}",
        expected="the size of a spike plane, as neither dataset.json nor a file of "
        "spike.calibration gives it",
        do='add for instance "spike": {"type": "dat", "h": 360, "w": 640} '
        "(360 x 640 for Spk-GoPro)",
    )


# ---- Refusals --------------------------------------------------------------------------------


def _refuse_exposure_with_window(exposure: Any, first: Any, count: int | None) -> None:
    """Raise OptionError if the planes of a frame are given in two ways.

    exposure, first, count: keys of the section spike. The defaults are null, 0 and null.
    """
    has_window = first != 0 or count is not None
    if exposure is None or not has_window:
        return
    raise OptionError(
        what="spike.exposure and spike.first or spike.count exclude one another",
        where="spike.exposure",
        expected="one of them",
        do="remove the others",
    )


def _refuse_keys_without_effect(
    is_set: Mapping[str, bool], without_effect: frozenset[str], representation: str
) -> None:
    """Raise OptionError if keys are set that have no effect on the representation.

    is_set: key -> whether the section sets it. without_effect: the keys that have none.
    representation: name and options, for the message.
    """
    refused = []
    for key in is_set:
        if is_set[key] and key in without_effect:
            refused.append(f"spike.{key}")
    if not refused:
        return
    keys = ", ".join(refused)
    raise OptionError(
        what=f"{keys} has no effect on spike.representation {representation}",
        where=keys,
        expected="keys that it uses",
        do="remove it, or choose another representation",
    )


def _unknown_center(clip: str, why: str) -> OptionError:
    """Return the error for a clip if the plane of its sharp frame cannot be used.

    why: end of the sentence "the plane of the sharp frame ...". The table of the data check does
    not show `where`. So the other parts name the key spike.center, too.
    """
    return OptionError(
        what=f"the plane of the sharp frame {why} for clip {clip}",
        where="spike.center",
        expected='spike.center "file" or a plane number; or "gt" with gt_plane in dataset.json or '
        "Spk-GoPro clip names",
        do='set spike.center to "file" or to the number of the plane; leave out a frame whose '
        "middle the file lacks",
    )


# Files data/spike_source_*.py of a user add spike sources when they are imported.
import_parts("data", "spike_source_*")
