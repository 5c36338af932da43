"""Restore frames from spikes by a formula, without weights. A network is compared with the result.

main_test_vrt.py --method NAME uses this module. A method consists of two things of the same name: a
spike representation (data/spike/represent.py), which turns spikes into channels, and an entry in
`METHODS`, which says how the channels become a frame. E.g. --method tfp: the representation "tfp"
counts the spikes of each pixel, and the frame shows the counts.

    Reconstruction   the method as the test programs call it (`utils.contract.Method`)
    section_for      the options of a test set, so that its spikes are read for a method
    spike_section    the same for the section `spike` alone, of a user's clip
    spike_clip       a clip of spikes for which there are no frames

What must stay: the frames of each method, because published scores belong to them
(test_frames_equal_frames_that_were_made_by_hand notices a value that is off by 2 of 255), and the
interface `utils.contract.Method`. Free to add: a method, by a representation and an entry in
`METHODS` (docs/extending.md).

Tests: tests/stories/test_reconstruct.py
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.cameras.representation_section import REPRESENTATIONS, channels_of
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_source import SPIKE_SOURCES, DatSpikes
from data.clips.clip_reader import UserClips
from data.clips.readers import DatasetClip
from data.clips.user_clip import user_clip
from data.clips.user_frames import UserFrames
from data.clips.user_spike_files import section_and_info, spike_files
from data.spike.formats import FORMATS, count_planes, open_spikes
from data.spike.pictures import DISPLAY_GAMMA, to_display, to_uint8
from data.spike.ratios import exposure_estimate
from utils.contract import FrameReader, Tick
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.options.models import LoaderOptions
from utils.user_path import expand_path

# Keys of the spike section that a method sets itself, so a user cannot set them.
# main_test_vrt.py refuses them.
SET_BY_METHOD = ("representation", "gamma", "resize", "context")
# Keys with which a representation makes several pictures of a frame. A method makes one picture, so
# a user cannot set these keys.
KEYS_OF_SEVERAL_PICTURES = ("offsets", "num_bins")
# If the firing rate at full light is unknown, this percentage of the pixels is darker than white.
# With 100, one bright or defective pixel could make the whole picture dark. With a much smaller
# value, bright parts of the scene would all become white.
WHITE_PERCENTILE = 99.5
# Smallest firing rate that counts as white, in spikes per plane. All rates are divided by it, so it
# must not be 0. It only has an effect if a clip has nearly no spikes.
LEAST_WHITE = 1e-6

logger = logging.getLogger(__name__)


# ---- Methods ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """How the channels of the representation of the same name become a frame."""

    # Function (blurry, channels) -> frame. blurry is the blurry frame (H, W, 3), display values in
    # [0, 1]. channels are (S, H, W). The frame is (H, W, 3) float32 in [0, 1].
    picture: Callable[[np.ndarray, np.ndarray], np.ndarray]
    is_grey: bool  # whether the frame has no colour; it is then scored on grey values
    # The channels hold light^(1 / gamma). With gamma 1 they are linear light, with DISPLAY_GAMMA
    # (2.2) display values. The method sets the option `spike.gamma` to this value.
    gamma: float


def _first_channel(_: np.ndarray, channels: np.ndarray) -> np.ndarray:
    """Return the first channel as a grey frame; the blurry frame is not used."""
    grey = np.clip(channels[0], 0, 1)  # (H, W)
    return np.repeat(grey[..., None], 3, axis=2)


GREY = Formula(picture=_first_channel, is_grey=True, gamma=DISPLAY_GAMMA)
# `exposure_estimate` multiplies the linear light of the blurry frame by a ratio of two channels. So
# the channels must be linear light, too: gamma 1.
EXPOSURE = Formula(picture=exposure_estimate, is_grey=False, gamma=1.0)
METHODS = {
    "tfp": GREY,  # texture from playback: spikes per plane in a window
    "tfi": GREY,  # texture from interval: planes between two spikes
    "tfstp": GREY,  # texture from short-term plasticity: a model of synapses
    "exposure": EXPOSURE,
}


def method_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the options of a method with the defaults of its representation.

    section: {"type": name of the method, ...}.
    Raises OptionError for an unknown method, and for options that make several pictures.
    """
    # The message also names `joint`, which a user can choose, too. It is not in METHODS, because it
    # is no formula but `JointMethod` in data/motion/joint_method.py.
    name = section["type"]
    if name not in METHODS:
        raise OptionError(
            what=f"method.type is {name!r}",
            where="method.type",
            expected=f"one of {', '.join(METHODS)}, or joint",
            do="choose one of these methods",
        )
    # E.g. method.num_bins=4 would make four pictures.
    refused = [f"method.{key}" for key in KEYS_OF_SEVERAL_PICTURES if key in section]
    if refused:
        raise OptionError(
            what=f"{', '.join(refused)} would make several pictures of a frame",
            where="method",
            expected="one picture of each frame",
            do="remove these keys",
        )
    options = REPRESENTATIONS.resolve(section, "method").plain()
    # The number of channels is not needed here. But `channels_of` raises an error if options
    # contradict one another.
    channels_of(options)
    # `resolve` has added the defaults of these keys. A user cannot set the keys, so the report and
    # the stored settings must not list them.
    for key in KEYS_OF_SEVERAL_PICTURES:
        options.pop(key, None)
    return options


class Reconstruction:
    """A method that needs one frame and its spikes. It has the interface `utils.contract.Method`.

    main_test_vrt.py calls a formula and a network in the same way. So the members of the interface
    must stay. The keys of `settings` are stored with results and compared, so they must stay, too.
    """

    # Any range of frames can be restored alone, because each frame is restored by itself.
    can_cut = True
    # Number of sharp frames for each blurry one.
    instants = 1

    def __init__(self, options: dict[str, Any], center_frame_only: bool) -> None:
        """Make the method.

        options: what `method_options` returned, e.g. {"type": "tfp", "half_window": 10}.
        center_frame_only: whether only the middle frame of a clip is restored.
        """
        self.options = options
        self.center_frame_only = center_frame_only
        self.formula = METHODS[options["type"]]
        self.is_grey = self.formula.is_grey

    def settings(self) -> dict[str, Any]:
        """Return all options that change the frames. They are stored with the results.

        E.g. {"method": {"type": "tfp", "half_window": 10, ...}, ...}. A repeated test
        continues stored results only if they are equal.
        """
        return {"method": self.options, "center_frame_only": self.center_frame_only}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report, e.g. {"method": "tfp (half_window 10)"}."""
        parameters = []
        for key, value in self.options.items():
            if key != "type" and value is not None:
                parameters.append(f"{key} {value}")
        words = {"method": f"{self.options['type']} ({', '.join(parameters)})"}
        if self.is_grey:
            words["colour"] = "none: scored on the luma of the sharp frame alone (PSNR-Y, SSIM-Y)"
        if self.center_frame_only:
            words["frames"] = "the middle one"
        return words

    def restorer(self, device: torch.device) -> "Reconstruction":
        """Return the restorer: this object itself. It always works on the CPU."""
        return self

    def describe(self) -> str:
        """Return in words how a frame is divided into tiles. A formula needs no tiles."""
        return "none: each pixel by itself"

    def frames(self, reader: FrameReader, wanted: range, tick: Tick) -> Iterator[torch.Tensor]:
        """Yield the restored frames of a clip, (3, H, W) float32 in [0, 1].

        reader: reads the frames of the clip. wanted: numbers of the frames to restore.
        tick: called with the number of frames that are done, for the progress.
        """
        for frame in wanted:
            # Tell the watchdog that the program does not hang.
            watchdog.go_on()
            item = reader.frame(frame)
            rgb = item["lq"][:3]  # without channel 3, which is a noise map if there is one
            blurry = rgb.permute(1, 2, 0).numpy()  # (H, W, 3)
            channels = item["spike"].numpy()  # (S, H, W)
            picture = self.formula.picture(blurry, channels)  # (H, W, 3)
            yield torch.from_numpy(picture).permute(2, 0, 1)
            tick(1)


# ---- Sections that read spikes for a method --------------------------------------------------


def spike_section(section: Any, method: Reconstruction, recorded: float | None) -> Any:
    """Return a spike section for a method. The method decides the keys of `SET_BY_METHOD`.

    section: the section `spike` of the options.
    recorded: the firing rate at full light in dataset.json. If neither dataset.json nor the section
    has a rate, the rate is measured from the brightness of the frames (spike.rate "match"), and a
    warning says so.
    """
    set_by_method = {
        "representation": method.options,
        "gamma": method.formula.gamma,
        "resize": "bilinear",  # smooth pictures; "nearest" is for raw planes of 0 and 1
        "context": 0,  # no method uses planes outside of the exposure
    }
    # A key of the method replaces the key of the section.
    values = {**section.plain(), **set_by_method}
    spike: Any = SPIKE_SOURCES.resolve(values, "spike")
    if spike.rate is not None or recorded is not None:
        return spike
    logger.warning(
        "the firing rate at full light is not known and measured from the brightness of the frames "
        "(spike.rate=match); give spike.rate if you know it"
    )
    return spike.model_copy(update={"rate": "match"})


def section_for(method: Reconstruction, section: Any, path: str, scale: int) -> LoaderOptions:
    """Return the section `datasets.test` so that its spikes are read for a method.

    section: the section of the option file `path`. scale: `scale` of the file.
    Raises OptionError if the method cannot be applied.
    """
    if not section.spike_channels:
        raise OptionError(
            what="datasets.test has no spikes",
            where=path,
            expected="an RGB + spike test set",
            do="choose another option file",
        )
    if scale != 1:
        raise OptionError(
            what=f"scale is {scale}",
            where=path,
            expected="1: a formula gives frames of the size of the input",
            do="choose another option file",
        )
    refuse_channels(section, path)
    # `constructor` is the class of the dataset, and `spike_data` its properties of the spikes.
    recorded_rate = section.constructor.spike_data(section)["rate"]
    changed = spike_section(section.spike, method, recorded_rate)
    return section.model_copy(update={"spike": changed})


def refuse_channels(section: Any, path: str) -> None:
    """Raise OptionError if a test set gives channels only, and no spike files.

    A method reads the planes of an exposure itself. But a user may have registered a test set that
    computes the channels for a network in Python, without spike files (docs/extending.md).

    section: the section `datasets.test` of the option file `path`.
    """
    if hasattr(section.constructor, "spike_data"):
        return
    raise OptionError(
        what="this method reads spike files, and datasets.test "
        f"({section.dataset_type}) gives channels",
        where=path,
        expected="a test set of spike files, e.g. VideoTestDatasetRGBSpike",
        do="choose another option file, or restore with a network",
    )


# ---- Spikes without frames -------------------------------------------------------------------


class LongExposures(UserFrames):
    """Frames that are made of spikes, for a clip that has spikes but no frames.

    A frame is the mean of its planes, in grey. Each spike file gives a frame. With spike.exposure,
    there is one file, and each exposure in it gives a frame.

    The brightness follows from the rate, the spikes per plane at full light. If the rate is
    unknown, the brightest pixels of the first frame are white.

    `user_clip` gets the object where other clips have a `FrameSource`, which is a `UserFrames` too.
    """

    def __init__(self, path: Path, clip: str, source: DatSpikes) -> None:
        """List the frames. Raises DataError if there is no spike file.

        path: the spike file or the folder of spike files. clip: name of the clip.
        source: how the spikes are read.
        """
        self.path = path
        # Frames from spikes have no times and no film.
        self.fps = None
        self.times = None
        self.pixel_aspect = Fraction(1)
        self.is_video = False
        self._clip = clip
        self._source = source
        self.files = spike_files(path)
        if not self.files:
            raise DataError(
                what="the folder holds no spikes",
                where=str(path),
                expected=", ".join(FORMATS),
                do="correct --spike",
            )
        self.stems = [file.stem for file in self.files]
        if source.timing.has_exposures:  # the option spike.exposure is set
            # The frames of one file are named by their numbers: "000000", "000001", ...
            with spike_errors_as_data_errors():
                planes = count_planes(self.files[0], source.geometry, source.remainder)
            frame_count = source.timing.frames(clip, planes)
            self.stems = [f"{frame:06d}" for frame in range(frame_count)]
            self.files = self.files * frame_count  # the file of each frame
        self.size = (source.geometry.height, source.geometry.width)
        # This may read the first frame, so it must come after all other attributes.
        self._white_rate = self._rate_of_white()

    def __len__(self) -> int:
        return len(self.stems)

    def _rate_of_white(self) -> float:
        """Return the spikes per plane of a white pixel."""
        rate = self._source.rate
        if rate != "match":  # the rate is known
            return rate
        # "match" measures the rate from frames, and there are none. So the brightest pixels of the
        # first frame are white.
        rates_of_first_frame = self._firing_rates(0)
        brightest = float(np.percentile(rates_of_first_frame, WHITE_PERCENTILE))
        return max(brightest, LEAST_WHITE)

    def _firing_rates(self, index: int) -> np.ndarray:
        """Return the spikes per plane of each pixel of frame `index`, (H, W) float32."""
        source = self._source
        with spike_errors_as_data_errors():
            file = open_spikes(self.files[index], source.geometry, source.remainder)
            span = source.timing.span(self._clip, index, file.planes)  # the planes of this frame
            planes = file.read(span.first, span.count)  # (T, H, W)
            return planes.mean(axis=0, dtype=np.float32)

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8 RGB."""
        values = self._firing_rates(index) / self._white_rate  # 1 is white
        # The frame has display values. Spikes of a real camera have integrated linear light, which
        # is converted. Simulated spikes may have integrated display values already.
        if self._source.light == "linear":
            values = to_display(values)
        grey = to_uint8(values)  # (H, W)
        return np.repeat(grey[..., None], 3, axis=2)


def spike_clip(path: str | Path, gt: str | Path | None, section: Any) -> DatasetClip:
    """Return the reader of a clip of spikes without frames. Its blurry frames are `LongExposures`.

    path: a folder with one spike file per frame, or one file. One file is a single frame. With
    spike.exposure, one file has several frames: a frame for each exposure that the table of
    exposures lists, or for each period that fits into the file.
    gt: a sharp picture for each frame. section: the section `spike` of the options.
    Raises DataError if spikes and sharp pictures do not belong together.

    main_test_vrt.py calls this if --spike is given without --input.
    """
    path = Path(expand_path(str(path)))
    if not path.exists():
        raise DataError(
            what="no such file or folder",
            where=str(path),
            expected="a spike file, or a folder of them",
            do="check --spike",
        )
    # The spikes of a data set are in <clip>/spike, so the name of the clip is one folder above.
    name = path.stem
    if path.name == "spike":
        name = path.resolve().parent.name
    # `section_and_info` completes the section by what a dataset.json beside the spikes says.
    section, info = section_and_info(section, path, name)
    source = SPIKE_SOURCES.build(section, "spike", info=info)
    frames = LongExposures(path, name, source)
    clip = user_clip(name, frames, gt=gt, spike=path, spikes=source)
    [reader] = UserClips([clip]).readers()
    return reader
