"""Say how the spikes of a data set or of one clip are read: the section `spike` of the options.

`DatSpikes` has the options, checked, and completed by the values of dataset.json. Three modules use
a `DatSpikes`:

    frame_planes.py         finds the planes of each frame, when the clips are listed
    channels_of_frame.py    reads the planes of each sample and turns them into channels
    sharp_image.py          shows channels to people

`DatSpikes` itself uses these modules:

    agreed_values.py            size of a plane, rate and light: from the option or dataset.json
    timing.py                   first, count and exposure, which say which planes a frame has
    representation_section.py   the options of the representation
    calibrated_grid.py          where the spike pixels lie on a frame, with a calibration
    scaled_grid.py              where the spike pixels lie on a frame, without a calibration

Words: a plane is one read-out of the spike camera, with one bit for each pixel. The rate is the
number of spikes per plane at full light. E.g. at the rate 0.5, a pixel at full light fires in every
second plane. Channels (S, H, W) are what a network sees of the planes of a frame.

What must stay: the arguments of `DatSpikes.__init__`, because they are keys of option files. A new
argument needs a default that changes nothing. The arguments of `DatSpikes.represent` must stay,
too, because users override this method.

Tests: tests/parts/data/test_spike_source.py
"""

import copy
import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from pydantic import Field

from data.cameras.agreed_values import agreed_geometry, agreed_rate, agreed_value, file_calibration
from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.calibration import Calibration
from data.cameras.dataset_info import DatasetInfo
from data.cameras.exposures import read_exposures
from data.cameras.representation_section import (
    REPRESENTATIONS,
    channels_of,
    read_representation,
    refuse_keys_without_effect,
)
from data.cameras.scaled_grid import ScaledGrid
from data.cameras.spike_grid import Grid
from data.cameras.timing import Timing
from data.spike import represent as rp
from data.spike.geometry import SpikeGeometry
from utils.errors import OptionError
from utils.options.registry import Registry, import_parts

# Values of `spike.type`.
SPIKE_SOURCES = Registry("spike source", "type")


# The arguments of `__init__` are the keys of the section `spike`, and `info`, which the program
# adds. The fields of the class are other values: they are computed from the arguments. So
# `__init__` is written by hand (init=False). eq=False: `==` is true only for the same object, and
# does not compare fields. Clips that are read in the same way share one object.
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
    of the frame) or a number.

    gamma: gamma of the channels. 1 gives linear light, 2.2 gives display values. Channels that are
    ratios of two lights are raised to the same power, 1 / gamma.
    resize: interpolation to the RGB grid. "nearest" keeps the values of raw planes at 0 and 1.
    calibration: a file of scripts/calibrate.py. "recorded" uses the calibrations of dataset.json,
    and takes a clip without a calibration as aligned with its frames. "auto" estimates the
    calibration of each clip from its own frames and spikes.
    A key that has no effect on the chosen representation is an error.

    An object never changes, because clips and loader processes share it. `changed` makes a copy.
    """

    # The files: what dataset.json says, and how the bits are stored.
    info: DatasetInfo
    geometry: SpikeGeometry
    remainder: Literal["error", "truncate"]

    # What a spike means: how much light, and whether the sensor integrated linear light or display
    # values.
    rate: float | Literal["match"]
    light: Literal["linear", "display"]
    # Whether rate and light are known. A value is known if the section or dataset.json gives it. It
    # also counts as known if the representation ignores it, because no code needs it then.
    is_rate_known: bool
    is_light_known: bool

    # Which planes are read for a frame.
    timing: Timing
    context: int
    center: Literal["gt", "file"] | int

    # How planes are turned into channels.
    name: str  # name of the representation, e.g. "voxel"
    options: dict[str, Any]  # options of the representation, e.g. {"num_bins": 4}
    channels: int  # number of channels S, e.g. 4
    gamma: float  # gamma of the channels
    # Keys of the section that change nothing with this representation. Setting such a key is an
    # error.
    without_effect: frozenset[str]

    # Where the spike pixels lie on a frame.
    interpolation: int  # a constant of OpenCV
    is_auto: bool  # whether data/cameras/self_calibration.py gives each clip its own calibration
    calibration: Calibration | None
    calibrated_grid: CalibratedGrid | None  # the grid that `calibration` gives
    # Whether planes may be stretched to frames whose size is not a whole multiple of the size of a
    # plane. False for data sets. data/clips/user_clip.py sets it to True for a user's own clip.
    may_be_stretched: bool

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
        # The docstring of the class explains the arguments. Each group below reads some keys,
        # compares these keys with dataset.json, and sets the fields of the group (see the class).
        # The first wrong key raises an error.
        #
        # The files. `calibration_of_file` is None in two cases: there is no calibration, or the key
        # is "auto". With "auto", a calibration is found for each clip later.
        calibration_of_file = file_calibration(calibration, info)
        geometry = agreed_geometry(
            info,
            calibration_of_file,
            h=h,
            w=w,
            flip=flip,
            head_columns=head_columns,
            bit_order=bit_order,
            layout=layout,
        )
        self._set(info=info, geometry=geometry, remainder=remainder)
        _refuse_exposure_with_window(exposure, first, count)

        # Read the representation, and set the rate and the light of the spikes.
        # `chosen.without_effect` has the keys of this section that the
        # representation ignores, e.g. "gamma" for raw planes.
        chosen = read_representation(representation)
        self._set_rate_and_light(rate, light, chosen.without_effect)

        # Which planes are read for a frame. If there is a calibration, `_calibrate` below sets the
        # offset and the share of `timing`.
        timing = Timing(first, count, read_exposures(exposure))
        self._set(timing=timing, context=context, center=center)

        # How planes are turned into channels.
        self._set(
            name=chosen.name,
            options=chosen.options,
            channels=channels_of(representation),
            gamma=gamma,
            without_effect=chosen.without_effect,
        )

        # Where the spike pixels lie on a frame. First set the values for the case without a
        # calibration. If there is a calibration, other values replace them:
        #
        #     a calibration file    `_calibrate` sets the values, a few lines below
        #     "auto"                later, self_calibration.py calls `changed`, which returns a copy
        #                           of this object with the calibration of one clip
        interpolation = cv2.INTER_NEAREST
        if resize == "bilinear":
            interpolation = cv2.INTER_LINEAR
        self._set(
            interpolation=interpolation,
            is_auto=calibration == "auto",
            calibration=None,
            calibrated_grid=None,
            may_be_stretched=False,
        )
        if calibration_of_file:
            self._calibrate(calibration_of_file.calibration, calibration_of_file.path)

        # Refuse a key that the user has set although the representation ignores it. A key counts as
        # set if its value differs from the default. The five defaults below are the defaults in the
        # signature of `__init__`. So if you change a default in the signature, change it here, too.
        # If the two defaults differ, a section that leaves the key out is refused.
        # test_keys_without_effect_are_refused sets each of the five keys.
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
        """Set fields of a new object. Call `_set` only before any other code has the object.

        The class is frozen, so `self.rate = 1` raises an error. Writing to vars(self) raises no
        error.
        """
        vars(self).update(values)

    def _set_rate_and_light(
        self,
        rate: float | Literal["match"] | None,
        light: Literal["linear", "display"] | None,
        without_effect: frozenset[str],
    ) -> None:
        """Set the rate and the light of a new object, and whether the two are known.

        rate, light: values of the keys spike.rate and spike.light. None: the key is not given.
        without_effect: keys that the representation ignores.
        Raises OptionError if a value differs from dataset.json.
        """
        info = self.info
        self._set(
            rate=agreed_rate(rate, info),
            light=agreed_value("light", light, info, default="linear"),
        )
        # A key without effect counts as known, because nobody reads its value.
        is_rate_given = rate is not None or info.rate is not None
        is_light_given = light is not None or info.light is not None
        self._set(
            is_rate_known=is_rate_given or "rate" in without_effect,
            is_light_known=is_light_given or "light" in without_effect,
        )

    def _calibrate(self, calibration: Calibration, path: str) -> None:
        """Set the fields `calibration`, `calibrated_grid` and `timing` of a new object.

        path: file of the calibration, for messages.
        Raises DataError if the calibration was made for planes of a different size.
        """
        is_nearest = self.interpolation == cv2.INTER_NEAREST
        timing = dataclasses.replace(
            self.timing,
            # The number of planes by which the first plane of each frame moves. E.g. 3 if the spike
            # camera started 3 planes before the RGB camera.
            offset=calibration.time_offset_planes,
            # The fraction of the planes of a frame that is read, around the middle plane. This
            # fraction is 1.12 times the exposure share, and at most 1. E.g. the exposure share 0.5
            # gives 0.56, which is 28 of 50 planes.
            share=calibration.share_to_read,
        )
        calibrated_grid = CalibratedGrid(calibration, self.geometry, path, is_nearest)
        self._set(calibration=calibration, calibrated_grid=calibrated_grid, timing=timing)

    def changed(self, calibration: Calibration | None = None, **fields: Any) -> "DatSpikes":
        """Return a copy in which some values are changed.

        calibration: a calibration that was found from the frames and spikes of a clip. This
        calibration replaces the calibration of the object. None: the calibration stays.
        fields: new values of fields of this class, such as context or center.
        """
        names = {field.name for field in dataclasses.fields(self)}
        wrong_names = fields.keys() - names
        if wrong_names:
            raise TypeError(f"DatSpikes has no {', '.join(sorted(wrong_names))}")
        other = copy.copy(self)
        other._set(**fields)
        if calibration:
            # This calibration was not read from a file, so messages name the option.
            other._calibrate(calibration, path="spike.calibration auto")
        return other

    def grid(self, size: tuple[int, int]) -> Grid:
        """Return the grid: which spike pixel belongs to which pixel of a blurry frame.

        size: (H, W) of the frame. Raises DataError if the frame and the plane do not fit.
        """
        if self.calibrated_grid is None:
            return ScaledGrid(self.geometry, size, self.interpolation, self.may_be_stretched)
        self.calibrated_grid.check_size(size)
        return self.calibrated_grid

    def represent(
        self,
        stream: np.ndarray,
        center: float,
        rate: float,
        reverse: bool = False,
        outside: tuple[int, int] = (0, 0),
    ) -> np.ndarray:
        """Turn the planes of one frame into channels (S, h, w) float32.

        stream: (T, h, w), the planes of the frame and its context. The planes are in the order of
        recording, also if the clip is played backwards.
        center: the plane of the sharp frame, counted from the first plane of the frame, i.e.
        without context.
        rate: spikes per plane at full light. reverse: whether the clip is played backwards.
        outside: (before, after), the numbers of context planes before and after the planes of the
        frame.

        E.g. 4 context planes, 20 planes of the frame, and 4 context planes: T is 28, and outside is
        (4, 4). The center 10 of the frame is then plane 14 of the stream.

        `read_channels` (channels_of_frame.py) calls `represent` for each frame, and `exposures_of`
        (frame_planes.py) calls it for a trial. A user's subclass may override this method
        (docs/extending.md), so its arguments stay.
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


def _refuse_exposure_with_window(exposure: Any, first: Any, count: int | None) -> None:
    """Raise OptionError if the planes of a frame are given in two ways.

    exposure, first, count: keys of the section spike. The defaults are null, 0 and null.

    test_exposures_beside_a_window_are_refused notices if nothing is refused.
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


# Import a user's files data/spike_source_*.py. While such a file is imported, it registers a spike
# source in SPIKE_SOURCES.
import_parts("data", "spike_source_*")
