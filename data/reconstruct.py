"""Frames from spikes by a formula, without weights: the baselines beside a network (main_test_vrt.py --method)."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.cameras.spike_info import spike_errors_as_data_errors
from data.cameras.spike_source import REPRESENTATIONS, SPIKE_SOURCES, DatSpikes, channels_of
from data.clips.clip_reader import (
    UserClips,
    described,
    spike_files,
    user_clip,
)
from data.clips.readers import DatasetClip
from data.spike.formats import FORMATS, count_planes, open_spikes
from data.spike.represent import exposure_estimate
from data.spike.simulate import DISPLAY_GAMMA, to_display, to_uint8
from utils.contract import FrameReader, Tick
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.options.models import LoaderOptions
from utils.options.section import Section
from utils.user_path import expanded

# Keys of the spike section that a method sets itself.
SET_BY_METHOD = ("representation", "gamma", "resize", "context")
SEVERAL = (
    "offsets",
    "num_bins",
)  # keys of a representation for several pictures; a method makes one

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Formula:
    """How the channels of the representation of the same name become a frame.

    picture: (blurry (H, W, 3) display values in [0, 1], channels (S, H, W)) -> (H, W, 3) float32 in [0, 1].
    gamma: of the channels, see the spike section.
    """

    picture: Callable[[np.ndarray, np.ndarray], np.ndarray]
    is_grey: bool
    gamma: float


# The first channel, whatever the blurry frame is.
GREY = Formula(
    lambda _, channels: np.repeat(np.clip(channels[0], 0, 1)[..., None], 3, axis=2),
    True,
    DISPLAY_GAMMA,
)
EXPOSURE = Formula(exposure_estimate, is_grey=False, gamma=1.0)  # a product of linear light
METHODS = {"tfp": GREY, "tfi": GREY, "tfstp": GREY, "exposure": EXPOSURE}


def method_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """A method's section {"type": name, ...}, completed by the defaults of its representation. Raises OptionError."""
    name = section["type"]
    if name not in METHODS:
        raise OptionError(
            f"method.type is {name!r}", "method.type", f"one of {', '.join(METHODS)}", "choose one"
        )
    if several := ", ".join(f"method.{key}" for key in SEVERAL if key in section):
        raise OptionError(
            f"{several} would make several pictures of a frame",
            "method",
            "one picture",
            "remove it",
        )
    options = REPRESENTATIONS.resolve(section, "method").plain()
    channels_of(options)
    return {key: value for key, value in options.items() if key not in SEVERAL}


class Reconstruction:
    """A method (utils.contract.Method) that needs one frame and its spikes. representation: of `method_options`."""

    can_cut, instants = True, 1

    def __init__(self, representation: dict[str, Any], center_frame_only: bool) -> None:
        self.representation, self.center_frame_only = representation, center_frame_only
        self.formula = METHODS[representation["type"]]
        self.is_grey = self.formula.is_grey

    def settings(self) -> dict[str, Any]:
        return {"method": self.representation, "center_frame_only": self.center_frame_only}

    def protocol(self) -> dict[str, str]:
        about = self.representation
        options = ", ".join(
            f"{key} {value}" for key, value in about.items() if key != "type" and value is not None
        )
        frames = {"frames": "the middle one"} if self.center_frame_only else {}
        grey = (
            {"colour": "none: scored on the luma of the sharp frame alone (PSNR-Y, SSIM-Y)"}
            if self.is_grey
            else {}
        )
        return {"method": f"{about['type']} ({options})", **grey, **frames}

    def restorer(self, device: torch.device) -> "Reconstruction":
        return self

    def describe(self) -> str:
        return "none: each pixel by itself"

    def frames(self, reader: FrameReader, wanted: range, tick: Tick) -> Iterator[torch.Tensor]:
        for index in wanted:
            watchdog.go_on()
            item = reader.frame(index)
            blurry = item["lq"][:3].permute(1, 2, 0).numpy()
            yield torch.from_numpy(self.formula.picture(blurry, item["spike"].numpy())).permute(
                2, 0, 1
            )
            tick(1)


def spike_section(section: Section, method: Reconstruction, recorded: float | None) -> Section:
    """A spike section that reads the same spikes for this method.

    recorded: the firing rate at full light in dataset.json. Where it is unknown in both, it is measured ("match").
    """
    # No method uses planes outside of the exposure.
    channels = zip(
        SET_BY_METHOD, (method.representation, method.formula.gamma, "bilinear", 0), strict=True
    )
    spike = SPIKE_SOURCES.resolve({**section.plain(), **dict(channels)}, "spike")
    if spike.rate is not None or recorded is not None:
        return spike
    measured = "measured from the brightness of the frames (spike.rate=match)"
    logger.warning(
        "the firing rate at full light is not known and %s; give spike.rate if you know it",
        measured,
    )
    return spike.model_copy(update={"rate": "match"})


def section_for(
    method: Reconstruction, section: LoaderOptions, path: str, scale: int
) -> LoaderOptions:
    """datasets.test, read for a method. Raises OptionError where the method cannot be applied."""
    if not section.spike_channels:
        raise OptionError(
            "datasets.test has no spikes",
            path,
            "an RGB + spike test set",
            "choose another option file",
        )
    if scale != 1:
        expected = "1: a formula gives frames of the size of the input"
        raise OptionError(f"scale is {scale}", path, expected, "choose another option file")
    recorded = section.constructor.spike_data(section)["rate"]
    return section.model_copy(update={"spike": spike_section(section.spike, method, recorded)})


class LongExposures:
    """Stand-ins for the frames of a clip of which there are only spikes: the mean of the planes of each, in grey.

    As data.clips.files.FrameSource: a frame for each file or, with spike.exposure, for each exposure in the one file. The
    brightness is that of the rate, or, where it is unknown, that of the brightest pixels of the first frame (99.5th
    percentile).
    """

    fps, times, is_video = None, None, False

    def __init__(self, path: Path, clip: str, source: DatSpikes) -> None:
        self.path, self._clip, self._source = path, clip, source
        self.files = spike_files(path)
        if not self.files:
            raise DataError(
                "the folder holds no spikes", str(path), ", ".join(FORMATS), "correct --spike"
            )
        self.stems = [file.stem for file in self.files]
        if source.timing.is_one_file:
            with spike_errors_as_data_errors():
                planes = count_planes(self.files[0], source.geometry, source.remainder)
            self.stems = [f"{i:06d}" for i in range(source.timing.frames(clip, planes))]
            self.files *= len(self.stems)
        self.size = (source.geometry.height, source.geometry.width)
        known = source.rate != "match"
        self._white = (
            source.rate if known else max(float(np.percentile(self._rates(0), 99.5)), 1e-6)
        )

    def __len__(self) -> int:
        return len(self.stems)

    def _rates(self, index: int) -> np.ndarray:
        with spike_errors_as_data_errors():
            file = open_spikes(self.files[index], self._source.geometry, self._source.remainder)
            span = self._source.timing.span(self._clip, index, file.planes)
            return file.read(span.first, span.count).mean(axis=0, dtype=np.float32)

    def read(self, index: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB."""
        light = self._rates(index) / self._white
        grey = to_uint8(light if self._source.light == "display" else to_display(light))
        return np.repeat(grey[..., None], 3, axis=2)


def spike_clip(path: str | Path, gt: str | Path | None, section: Section) -> DatasetClip:
    """The clip of a folder with one spike file per frame, or of one file; its input: LongExposures.

    One file is a single frame or, with spike.exposure, holds as many as its table lists or its period fits in.
    gt: a sharp picture for each. Raises DataError where they do not belong together.
    """
    path = Path(expanded(str(path)))
    if not path.exists():
        raise DataError(
            "no such file or folder",
            str(path),
            "a spike file, or a folder of them",
            "check --spike",
        )
    name = path.resolve().parent.name if path.name == "spike" else path.stem
    section, info = described(section, path, name)
    source = SPIKE_SOURCES.build(section, "spike", info=info)
    clip = user_clip(name, LongExposures(path, name, source), gt, path, source)
    return UserClips([clip]).readers()[0]
