"""The `spike` section of a dataset: the geometry of the planes, what they mean, and their representation."""

import copy
import dataclasses
import inspect
import logging
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from pydantic import Field

from data.augment import Augment, CameraDraw
from data.cameras.frame_times import FrameTimes
from data.cameras.spike_grid import (
    CalibratedGrid,
    Calibration,
    Grid,
    ScaledGrid,
    Window,
    load_calibration,
)
from data.cameras.spike_info import DatasetInfo, Timing, read_exposures, spike_errors_as_data_errors
from data.clip import Clip, Exposure, Piece
from data.spike import represent as rp
from data.spike.formats import SpikeFileError, SpikeGeometry
from data.spike.simulate import DISPLAY_GAMMA, LUMA, to_linear
from utils.errors import DataError, OptionError
from utils.options.section import Registry, import_parts

logger = logging.getLogger(__name__)

DISPLAY_TO_LIGHT = to_linear(np.arange(256, dtype=np.float32) / 255.0)
NEAR = 10  # planes around the sharp frame; single planes are averaged over as many

REPRESENTATIONS = Registry("spike representation", "type")
SPIKE_SOURCES = Registry("spike source", "type")

import_parts("data.spike", "represent_*")
for _name, _known in rp.REPRESENTATIONS.items():
    REPRESENTATIONS.register(_name, given=("stream", "center"))(_known.function)


@SPIKE_SOURCES.register("dat", given=("info",))
class DatSpikes:
    """Spike files: packed planes (.dat, .bin) or arrays (.npy, .npz), one per RGB frame or one per clip.

    h, w, flip, rate, light: null takes them from dataset.json; another value is an error. rate: spikes per plane at
    full light, 1 if given nowhere; "match" measures it from the brightness of the blurry frame. light: what the sensor
    integrated, "linear" light (the default) or "display" values.
    head_columns: columns without image at the end of each line. bit_order: the first pixel is the least ("little") or
    most significant bit ("big") of a byte. layout: "sps100" for files of that sensor. remainder: "truncate" ignores
    bytes after the last whole plane. first, count: the planes read of each file; first "central": those in its middle.
    exposure: the planes of each frame, where one file holds a whole clip. context: planes read before and after those
    of a frame.
    center: the plane of the sharp frame: "gt" (of dataset.json), "file" (the middle of the planes that are read) or a
    number. gamma: light and ratios are raised to 1 / gamma (2.2: display values). resize: interpolation to the RGB
    grid; "nearest" keeps raw planes binary. calibration: a file of scripts/calibrate.py;
    "recorded": those of dataset.json, a clip without one is taken as aligned; "auto": found from each clip itself.
    A key that has no effect on the chosen representation is an error.
    """

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
        gamma: Annotated[float, Field(gt=0)] = 1.0,
        resize: Literal["bilinear", "nearest"] = "bilinear",
        calibration: str | None = None,
        representation: Annotated[dict[str, Any] | str, REPRESENTATIONS] = "voxel",
    ) -> None:
        try:
            self.geometry = SpikeGeometry(
                _agreed("h", h, info), _agreed("w", w, info), _agreed("flip", flip, info, layout == "raster"),
                head_columns, bit_order, layout,
            )  # fmt: skip
        except SpikeFileError as e:
            raise OptionError(
                e.what, "spike.h, spike.w, spike.head_columns", e.expected, "correct them"
            ) from e
        self.rate = "match" if rate == "match" else float(_agreed("rate", rate, info, 1.0))
        self.light = _agreed("light", light, info, "linear")
        if exposure is not None and (first or count is not None):
            what, expected = (
                "spike.exposure and spike.first or spike.count exclude one another",
                "one of them",
            )
            raise OptionError(what, "spike.exposure", expected, "remove the others")
        self.info, self.center, self.remainder, self.gamma, self.context = (
            info,
            center,
            remainder,
            gamma,
            context,
        )
        self.interpolation = cv2.INTER_LINEAR if resize == "bilinear" else cv2.INTER_NEAREST
        self.is_stretched = False  # the planes to frames of any ratio, for whole frames
        self.calibration = self._calibrated = None
        recorded = info.calibration if calibration == "recorded" else None
        self.timing = Timing(first, count, read_exposures(exposure))
        self.is_auto = (
            calibration == "auto"
        )  # data/cameras/self_calibration.py gives each clip its own
        if calibration not in (None, "auto", None if recorded else "recorded"):
            path = info.path if recorded else calibration
            self._calibrate(load_calibration(path, recorded), path)
        self.options = REPRESENTATIONS.resolve(representation, "spike.representation").plain()
        self.name = self.options.pop("type")
        self.channels = channels_of(representation)
        self.ignored = rp.REPRESENTATIONS[self.name].ignored(**self.options)
        given = {
            "rate": rate,
            "light": light,
            "gamma": gamma != 1.0,
            "center": center != "gt",
            "context": context,
        }
        if idle := ", ".join(
            f"spike.{key}" for key, value in given.items() if value and key in self.ignored
        ):
            what = f"{idle} has no effect on spike.representation {self.name} with {self.options}"
            raise OptionError(
                what, idle, "keys that it uses", "remove it, or choose another representation"
            )
        self.is_light_known = "light" in self.ignored or (light or info.light) is not None
        self.is_rate_known = (
            "rate" in self.ignored or (rate if rate is not None else info.rate) is not None
        )

    def _calibrate(self, calibration: Calibration, path: str) -> None:
        nearest = self.interpolation == cv2.INTER_NEAREST
        self.calibration, self._calibrated = (
            calibration,
            CalibratedGrid(calibration, self.geometry, path, nearest),
        )
        times = {"offset": calibration.time_offset_planes, "share": calibration.exposure_share}
        self.timing = dataclasses.replace(self.timing, **times)

    def changed(
        self, calibration: Calibration | None = None, context: int | None = None
    ) -> "DatSpikes":
        """The same spikes with another calibration, or with so many planes of context."""
        other = copy.copy(self)
        other.context = self.context if context is None else context
        if calibration:
            other._calibrate(calibration, "spike.calibration auto")
        return other

    def grid(self, size: tuple[int, int]) -> Grid:
        """How planes lie on lq frames of `size` (H, W). Raises DataError where the sizes do not fit."""
        if self._calibrated is None:
            return ScaledGrid(self.geometry, size, self.interpolation, self.is_stretched)
        self._calibrated.check_size(size)
        return self._calibrated

    def exposures(
        self,
        clip: str,
        files: list[tuple[str, int]],
        frames: int,
        times: FrameTimes | None = None,
    ) -> tuple[Exposure, ...]:
        """The planes of each of the frames of a clip, checked: they lie in their file and can be represented.

        files: path and planes of a file per frame, or of one for all. times: of the frames of one file, see
        `Timing.shares`; None: they are known to follow one another at one distance.
        The plane of the sharp frame is counted in the planes of the exposure; x.5 lies between two.
        Raises OptionError where the plane of the sharp frame is unknown, DataError for all else.
        """
        found, checked = [], set()
        shares = self.shares(clip, files[0][1], times) if times and len(files) == 1 else None
        for frame in range(frames):
            own = frame if len(files) > 1 else 0
            path, planes = files[own]
            span = self.timing.span(clip, frame, planes, shares)
            # Its planes and those of the context, as far as there are any: the files follow one another in time.
            lo, hi = span.first - self.context, span.first + span.count + self.context
            start = -files[own - 1][1] if own else 0  # counted in the span's own file
            before, pieces = min(self.context, span.first - start), []
            for file, length in files[max(own - 1, 0) : own + 2]:
                begin, stop = max(lo - start, 0), min(hi - start, length)
                pieces += [Piece(file, begin, stop - begin)] if begin < stop else []
                start += length
            last = span.origin + span.count - 1
            named = {"gt": self.info.gt_plane_of(clip, span.length), "file": span.middle}
            center = named.get(self.center, self.center)
            if "center" in self.ignored:
                center = span.origin + (span.count - 1) / 2
            if center is None or not span.origin <= center <= last:
                what = (
                    "is not known"
                    if center is None
                    else f"{center} is outside of {span.origin} to {last}"
                )
                raise OptionError(
                    f"the plane of the sharp frame {what} for clip {clip}", "spike.center",
                    '"gt" with gt_plane in dataset.json or Spk-GoPro clip names; else "file" or a plane number',
                    'set it to "file" or to the number; leave out a frame whose middle the file lacks',
                )  # fmt: skip
            center -= span.origin
            own_planes = Piece(path, span.first, span.count)
            found.append(Exposure(own_planes, tuple(pieces), before, center, span.origin))
            if (span.count, center) not in checked:
                checked.add((span.count, center))
                try:
                    self.represent(np.zeros((span.count, 1, 1), np.uint8), center, rate=1.0)
                except ValueError as e:
                    what = (
                        f"{span.count} planes are too few for spike.representation {self.name}: {e}"
                    )
                    expected = f"planes for {self.options} around plane {center:g}"
                    raise DataError(
                        what, path, expected, "use smaller windows, or another spike.center"
                    ) from e
        return tuple(found)

    def shares(self, clip: str, planes: int, times: FrameTimes) -> list[tuple[int, int]] | None:
        """Return `Timing.shares` of a clip with one file of `planes` planes."""
        tick_hz = self.calibration.tick_hz if self.calibration else None
        return self.timing.shares(clip, planes, times, tick_hz)

    def rate_of(self, stream: np.ndarray, frame: np.ndarray, window: Window) -> float:
        """Spikes per plane at full light. stream (T, h, w); frame (H, W, 3) uint8, B, G, R: its blurry frame there.

        With rate "match" it is measured: during the exposure both recorded the same light, the frame as display
        values of gamma 2.2, the spikes as given by `light`. So the threshold and the gain of the camera may be unknown.
        """
        if self.rate != "match":
            return self.rate
        values = frame if self.light == "display" else cv2.LUT(frame, DISPLAY_TO_LIGHT)
        fired, colour = window.brightness(stream, values)
        seen = float(colour @ LUMA[::-1]) / (255.0 if self.light == "display" else 1.0)
        return max(fired, 1e-4) / max(seen, 1e-3)

    def represent(
        self,
        stream: np.ndarray,
        center: float,
        rate: float,
        reverse: bool = False,
        outside: tuple[int, int] = (0, 0),
    ) -> np.ndarray:
        """Stream (T, h, w) of one frame, as recorded -> (S, h, w) float32.

        center: counted in the frame's own planes. rate: from `rate_of`. reverse: as of a clip that is played backwards.
        outside: so many more planes come before and after those of the frame.
        """
        return rp.represent(
            self.name, stream, center + outside[0], reverse=reverse, rate=rate, light=self.light, gamma=self.gamma,
            outside=outside, **self.options,
        )  # fmt: skip

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
        """The channels of one frame's file within the crop of `aug`, not flipped: (S, aug.height, aug.width) float32.

        files: an io backend. image: the blurry frame there, (aug.height, aug.width, 3) uint8, B, G, R. reverse: time
        runs backwards. camera: a simulated camera, None for the recording one. Only the spike pixels that the crop
        needs are unpacked; it is exactly that crop of the whole frame.
        """
        window, exposure = clip.grid.window(aug), clip.exposures[frame]
        with spike_errors_as_data_errors():
            stream = np.concatenate(
                [files.stream(clip, piece, window.crop) for piece in exposure.pieces]
            )
        if camera:
            stream = camera.apply(stream, frame)
        before, count = exposure.before, exposure.own.count
        rate = self.rate_of(stream[before : before + count], image, window)
        if camera and self.rate != "match":
            rate *= camera.known_rate_factor
        channels = self.represent(
            stream, exposure.center, rate, reverse, (before, len(stream) - before - count)
        )
        return window.to_rgb(channels)

    def sharp_image(
        self, channels: np.ndarray, exposure: Exposure, reverse: bool = False
    ) -> np.ndarray:
        """What the channels (S, H, W) of a frame show of the sharp instant, in display values (H, W) float32, >= 0.

        It is the mean of the channels nearest to the instant; ratios to the exposure's light are turned into light.
        """
        if self.name == "relative":
            # The ratio of the middle one of the windows, times the spikes of the exposure, which the confidence gives.
            order = np.argsort(self.options["half_windows"])
            integrated = (
                DISPLAY_GAMMA if self.light == "display" else 1.0
            )  # exponent of light from what was integrated
            seen = np.clip(channels[[order[len(order) // 2], -1]], 0, [[[np.inf]], [[0.999]]])
            ratio, trust = seen ** (self.gamma / integrated)
            seen = ratio * trust / (1 - trust)
            return (seen / max(seen.max(), 1e-9)) ** (integrated / DISPLAY_GAMMA)
        is_proportional, offsets = (
            rp.REPRESENTATIONS[self.name].proportional,
            self.options.get("offsets"),
        )
        if offsets and self.options.get("num_bins") is None:
            nearest = [int(np.argmin(np.abs(offsets)))]
        else:
            # How much each plane counts in each channel: plane t of pixel t alone fires.
            count, center = exposure.own.count, exposure.center
            impulses = np.eye(count, dtype=np.uint8)[:, None]
            weights = rp.represent(self.name, impulses, center, reverse=reverse, **self.options)[
                :, 0
            ]
            distances = np.abs(np.arange(count) - center)
            mean = (weights @ distances) / np.maximum(weights.sum(axis=1), 1e-9)
            nearest = np.flatnonzero(
                mean <= mean.min() + (0.51 if is_proportional else NEAR)
            ).tolist()
        image = np.maximum(channels[nearest].mean(0), 0)
        is_display = not is_proportional and self.light == "display"
        return image if is_display else image ** (self.gamma / DISPLAY_GAMMA)


def user_spikes(
    section: Any, trained: dict[str, Any] | None, info: DatasetInfo, clip: str
) -> DatSpikes:
    """The source of a user's spikes for a network of `section`; warns of what is assumed.

    trained: `ClipDataset.spike_data` of the training, None where it is not known. Where neither the user nor
    dataset.json gives the light, it is that of the training. Where they do not give the rate, it is measured
    ("match"), except for a network that learned from undivided firing rates, which needs none.
    """
    source = SPIKE_SOURCES.build(section, "spike", info=info)
    if trained and trained.get("calibration") and not (source.calibration or source.is_auto):
        text = "spikes of %s: taken as aligned with the frames; the network was trained on those of a second camera"
        logger.warning(f"{text}: give spike.calibration if these are, too", clip)
    if "light" in source.ignored:
        return source
    changes = {"light": section.light or info.light or (trained or {}).get("light")}
    if not source.is_rate_known:
        how = "taken as 1, as for a network that learned from undivided firing rates of the same camera"
        if trained is not None and trained["rate"] is not None:
            changes["rate"] = "match"
            how = "measured from the brightness of the frames, which show %s light as in training (spike.rate=match)"
            how %= changes["light"]
        text = "spikes of %s: the firing rate at full light is not known and %s; give spike.rate if you know it"
        logger.warning(text, clip, how)
    return SPIKE_SOURCES.build(section.model_copy(update=changes), "spike", info=info)


def channels_of(representation: dict[str, Any] | str) -> int:
    """S of a spike.representation section. Raises OptionError for options that contradict one another."""
    options = REPRESENTATIONS.resolve(representation, "spike.representation").plain()
    name = options.pop("type")
    try:
        return rp.channel_count(name, **options)
    except ValueError as e:
        expected = str(inspect.signature(rp.REPRESENTATIONS[name].function))
        what = f"spike.representation {name} cannot be made: {e}"
        raise OptionError(what, "spike.representation", expected, "correct its options") from e


def _agreed(key: str, option: Any, info: DatasetInfo, default: Any = None) -> Any:
    """The option, else the value of dataset.json, else the default. Raises OptionError for a conflict or no value."""
    recorded = getattr(info, key)
    if option is not None and recorded is not None and option != recorded:
        what = f"spike.{key} is {option}, dataset.json has {recorded}"
        raise OptionError(
            what,
            info.path,
            f"the same {key} in both",
            f"remove spike.{key}, or correct dataset.json",
        )
    value = next((v for v in (option, recorded, default) if v is not None), None)
    if value is None:
        raise OptionError(
            f"spike.{key} is missing", f"spike.{key}", "the size of a spike plane, as no dataset.json gives it",
            'add for instance "spike": {"type": "dat", "h": 360, "w": 640} (360 x 640 for Spk-GoPro)',
        )  # fmt: skip
    return value


import_parts("data", "spike_source_*")
