"""Read the spikes of a sample: the `spike` section of a dataset.

`DatSpikes` is what a section says of the spikes of one data set, or of one clip. It is used in two
phases:

    1. When the clips are listed: `exposures` decides which planes belong to each frame, and checks
       that they exist.
    2. For each sample: `read` reads these planes, and turns them into channels (S, H, W) on the
       pixels of the frame.

Each step has a module of its own (in this folder, if no other is named):

    agreed_values.py            size of a plane, rate and light: from the option or dataset.json
    timing.py                   the planes of each frame, without context: a `Span`
    sharp_plane.py              the plane of the sharp frame: the center
    context_planes.py           the planes around the planes of a frame
    measured_rate.py            the rate "match"
    data/spike/represent.py     planes become channels (representation_section.py has the options)
    spike_grid.py               the channels on the pixels of the frame: a `Window` for each crop
    sharp_image.py              a picture of the channels, for people

Words: a plane is one read-out of the spike camera. A `Piece` (data/clip.py) is successive planes of
one file, and an `Exposure` is all planes that are read for a frame, as pieces. The rate is the
number of spikes per plane at full light.

What must stay, and which test notices (in tests/parts/data):

    test_dataset_video_rgbspike.py   the result of `read`, because it is what a network sees: the
                                     order of its steps is fixed
    test_spike_source.py             the arguments of `DatSpikes`, because they are keys of option
                                     files. A new argument needs a default that changes nothing.
    test_timing.py                   the planes of each frame, and the errors for wrong planes
"""

import copy
import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from pydantic import Field

from data.augment import Augment, CameraDraw
from data.cameras.agreed_values import agreed_geometry, agreed_rate, agreed_value, file_calibration
from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.calibration import Calibration
from data.cameras.context_planes import with_context
from data.cameras.dataset_info import DatasetInfo
from data.cameras.exposures import read_exposures
from data.cameras.frame_times import FrameTimes
from data.cameras.measured_rate import measured_rate
from data.cameras.representation_section import (
    REPRESENTATIONS,
    channels_of,
    read_representation,
    refuse_keys_without_effect,
)
from data.cameras.scaled_grid import ScaledGrid
from data.cameras.sharp_image import image_of_channels, image_of_ratios, nearest_channels
from data.cameras.sharp_plane import middle_of_read_planes, sharp_plane
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_grid import Grid, Window
from data.cameras.timing import Span, Timing
from data.clip import Clip, Exposure, Piece
from data.spike import represent as rp
from data.spike.geometry import SpikeGeometry
from utils.errors import DataError, OptionError
from utils.options.registry import Registry, import_parts

# Values of `spike.type`.
SPIKE_SOURCES = Registry("spike source", "type")


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
        from_file = file_calibration(calibration, info)  # None without a calibration file
        geometry = agreed_geometry(info, from_file, h, w, flip, head_columns, bit_order, layout)
        _refuse_exposure_with_window(exposure, first, count)
        chosen = read_representation(representation)
        known_rate = agreed_rate(rate, info)

        # Set the fields. Light and rate are known if somebody gave them, or if nobody needs them.
        is_light_given = light is not None or info.light is not None
        is_rate_given = rate is not None or info.rate is not None
        self._set(
            info=info,
            geometry=geometry,
            rate=known_rate,
            light=agreed_value("light", light, info, default="linear"),
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
        refuse_keys_without_effect(is_set, chosen.without_effect, with_options)

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
        """Return the planes of each frame of a clip, and check that they can be used.

        Everything that can be wrong with the planes is found here, before a run starts: the file
        has them, and the representation can be made of them. `read` relies on this check.

        clip: name of the clip.
        files: (path, number of planes) of each spike file: a file for each frame, or one file.
        frames: number of frames.
        times: when the frames were taken. None: not known. They are used if one file holds the
        planes of all frames, and the option spike.exposure does not list the planes of each frame.

        Raises OptionError if the plane of the sharp frame is unknown, and DataError for planes that
        do not fit.
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
        if "center" in self.without_effect:
            plane = middle_of_read_planes(span)
        else:
            plane = sharp_plane(self.center, self.info, clip, span)
        planes_before, pieces = with_context(files, file_index, span, self.context)
        return Exposure(
            own=Piece(path, span.first, span.count),
            pieces=pieces,
            before=planes_before,
            # From here on, planes count from the first plane that is read, whose number so far was
            # `span.origin`. E.g. the first 14 planes of a file are not read: 27.5 - 14 = 13.5.
            center=plane - span.origin,
            origin=span.origin,
        )

    def plane_ranges(
        self, clip: str, planes: int, times: FrameTimes
    ) -> list[tuple[int, int]] | None:
        """Return (first plane, plane after the last) of each frame of a clip with one spike file.

        planes: number of planes of the file. times: when the frames were taken.
        Returns None if spike.exposure lists the planes of each frame.
        """
        tick_hz = self.calibration.tick_hz if self.calibration else None  # planes per second
        return self.timing.plane_ranges(clip, planes, times, tick_hz)

    def _refuse_too_few_planes(self, exposure: Exposure) -> None:
        """Raise DataError if the representation cannot be made of the planes of an exposure.

        The representation is tried on one pixel without spikes. It gets no context planes, although
        most frames have some, because the first frame of a clip has none before it.
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

        files: reads the spike files, e.g. a `DiskFiles` (data/clips/io_backend.py).
        clip: the clip, with the exposures of its frames. frame: number of the frame in the clip.
        aug: the crop of the frame. Only its place and size are used here.
        image: the crop of the blurry frame, (aug.height, aug.width, 3) uint8, B, G, R.
        reverse: whether the clip is played backwards.
        camera: a simulated camera, which changes the recorded spikes. None: they stay as recorded.

        Returns (S, aug.height, aug.width) float32. The result is equal to the crop of the channels
        of the whole frame, although only the spike pixels that the crop needs are unpacked.
        """
        # The order must stay: planes, simulated camera, rate, representation, RGB grid.
        window = clip.grid.window(aug)  # window.crop: the spike pixels that the crop needs
        exposure = clip.exposures[frame]
        with spike_errors_as_data_errors():
            pieces = [files.stream(clip, piece, window.crop) for piece in exposure.pieces]
        stream = np.concatenate(pieces)  # (context before + planes of the frame + after, h, w)
        if camera:
            stream = camera.apply(stream, frame)

        # The rate is measured in the planes of the frame. The channels may use the context too.
        before = exposure.before
        end_of_frame = before + exposure.own.count
        rate = self.rate_of(stream[before:end_of_frame], image, window)
        # A rate of the options is the rate of the real camera. The simulated camera fires more or
        # less often: e.g. half as often with twice the threshold. Then the factor is 0.5, or 1 if
        # the network must not know it (camera.known_rate). With "match" the rate was measured in
        # the spikes of the simulated camera, so it needs no factor.
        if camera and self.rate != "match":
            rate *= camera.known_rate_factor
        after = len(stream) - end_of_frame
        # Positional arguments: a user's subclass may name them differently.
        channels = self.represent(stream, exposure.center, rate, reverse, (before, after))
        return window.to_rgb(channels)

    def rate_of(self, stream: np.ndarray, image: np.ndarray, window: Window) -> float:
        """Return the spikes per plane at full light: the known rate, or the measured one ("match").

        The arguments are those of `measured_rate`.
        """
        if self.rate != "match":
            return self.rate
        return measured_rate(stream, image, window, self.light)

    def represent(
        self,
        stream: np.ndarray,
        center: float,
        rate: float,
        reverse: bool = False,
        outside: tuple[int, int] = (0, 0),
    ) -> np.ndarray:
        """Turn a stream (T, h, w) of one frame, in the order of recording, into (S, h, w) float32.

        center: the plane of the sharp frame, counted from the first plane of the frame, i.e.
        without context.
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

    def sharp_image(
        self, channels: np.ndarray, exposure: Exposure, reverse: bool = False
    ) -> np.ndarray:
        """Return what the channels (S, H, W) of a frame show of the sharp moment, for people.

        exposure: the planes of the frame. reverse: whether the clip is played backwards.
        Returns display values (H, W) float32, >= 0.
        """
        if self.name == "relative":  # its channels are ratios to the light of the exposure
            half_windows = self.options["half_windows"]
            return image_of_ratios(channels, half_windows, self.light, self.gamma)
        nearest = nearest_channels(self.name, self.options, exposure, reverse)
        return image_of_channels(channels[nearest], self.name, self.light, self.gamma)


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


# Files data/spike_source_*.py of a user add spike sources when they are imported.
import_parts("data", "spike_source_*")
