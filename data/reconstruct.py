"""Frames from spikes by a formula, without weights: the baselines beside a network (main_test_vrt.py --method)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.clip_reader import UserClip, UserSpikes, check_reference, spike_files, with_size
from data.pictures import Pictures
from data.spike.exposure import exposure_estimate
from data.spike.formats import FORMATS, open_spikes
from data.spike.simulate import DISPLAY_GAMMA, to_display, to_uint8
from data.spike_info import nearest_info
from data.spike_source import SPIKE_SOURCES, DatSpikes, spike_errors_as_data_errors
from utils.contract import FrameReader
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.options.models import LoaderOptions
from utils.options.registry import Registry
from utils.options.section import Section

METHODS = Registry("method", "type")


class Reconstruction:
    """A method (see utils.contract.Method) whose frames follow from one frame of the input and its spikes alone.

    representation, gamma: of the spike section that it reads, see `spike_section`.
    """

    is_grey, can_cut, gamma = True, True, DISPLAY_GAMMA

    def __init__(self, center_frame_only: bool, representation: dict[str, Any]) -> None:
        self.center_frame_only, self.representation = center_frame_only, representation

    def picture(self, item: dict[str, Tensor]) -> Tensor:
        """The frame (3, H, W) in [0, 1] of an item of a FrameReader, here the first channel in grey."""
        return item["spike"][:1].clamp(0, 1).expand(3, -1, -1)

    def frames_of(self, count: int) -> range:
        return range(count // 2, count // 2 + 1) if self.center_frame_only else range(count)

    def settings(self) -> dict[str, Any]:
        return {"method": self.representation, "center_frame_only": self.center_frame_only}

    def protocol(self) -> dict[str, str]:
        about = self.representation
        options = ", ".join(f"{key} {value}" for key, value in about.items() if key != "type" and value is not None)
        frames = {"frames": "the middle one"} if self.center_frame_only else {}
        grey = {"colour": "none: scored on the luma of the sharp frame alone (PSNR-Y, SSIM-Y)"} if self.is_grey else {}
        return {"method": f"{about['type']} ({options})", **grey, **frames}

    def restorer(self, device: torch.device) -> Reconstruction:
        return self

    def describe(self) -> str:
        return "none: each pixel by itself"

    def frames(self, reader: FrameReader, wanted: range) -> Iterator[Tensor]:
        for index in wanted:
            watchdog.go_on()
            yield self.picture(reader.frame(index))


@METHODS.register("tfp", given=("center_frame_only",))
class Tfp(Reconstruction):
    """Grey: the mean of the planes around the sharp frame; see the representation tfp."""

    def __init__(self, half_window: int = 10, center_frame_only: bool = False) -> None:
        super().__init__(center_frame_only, {"type": "tfp", "half_window": half_window})


@METHODS.register("tfi", given=("center_frame_only",))
class Tfi(Reconstruction):
    """Grey: one over the interval between two spikes; see the representation tfi."""

    def __init__(self, half_window: int = 20, center_frame_only: bool = False) -> None:
        super().__init__(center_frame_only, {"type": "tfi", "half_window": half_window})


@METHODS.register("tfstp", given=("center_frame_only",))
class Tfstp(Reconstruction):
    """Grey: the rate from a model of short-term plasticity; see the representation tfstp."""

    def __init__(
        self, tau_d: float = 5.0, tau_f: float = 10.0, utilisation: float = 0.05, center_frame_only: bool = False
    ) -> None:
        options = {"tau_d": tau_d, "tau_f": tau_f, "utilisation": utilisation}
        super().__init__(center_frame_only, {"type": "tfstp", **options})


@METHODS.register("exposure", given=("center_frame_only",))
class Exposure(Reconstruction):
    """RGB: the blurry frame x the rate around the sharp frame / the rate of the exposure; see data.spike.exposure."""

    is_grey, gamma = False, 1.0  # the product is one of linear light

    def __init__(
        self,
        half_window: int = 10,
        half_exposure: int | None = None,
        prior: float = 0.25,
        center_frame_only: bool = False,
    ) -> None:
        options = {"half_window": half_window, "half_exposure": half_exposure, "prior": prior}
        super().__init__(center_frame_only, {"type": "exposure", **options})

    def picture(self, item: dict[str, Tensor]) -> Tensor:
        blurry = item["lq"][:3].permute(1, 2, 0).numpy()
        return torch.from_numpy(exposure_estimate(blurry, item["spike"].numpy())).permute(2, 0, 1)


def spike_section(section: Section | dict[str, Any], method: Reconstruction) -> Section:
    """A spike section that reads the same spikes for this method."""
    plain = section.plain() if isinstance(section, Section) else section
    channels = {"representation": method.representation, "gamma": method.gamma, "resize": "bilinear"}
    return SPIKE_SOURCES.resolve({**plain, **channels}, "spike")


def section_for(formula: Reconstruction, section: LoaderOptions, path: str, scale: int) -> LoaderOptions:
    """datasets.test, read for a formula. Raises OptionError where the formula cannot be applied."""
    if not section.spike_channels:
        raise OptionError("datasets.test has no spikes", path, "an RGB + spike test set", "choose another option file")
    if scale != 1:
        raise OptionError(
            f"scale is {scale}",
            path,
            "1: a formula gives frames of the size of the input",
            "choose another option file",
        )
    return section.model_copy(update={"spike": spike_section(section.spike, formula)})


class LongExposures:
    """Stand-ins for the frames of a clip of which there are only spikes: the mean of the planes of each, in grey.

    As data.pictures.Pictures. The brightness is that of the rate, or, where it is unknown, that of the brightest pixels
    of the first file (99.5th percentile).
    """

    fps, times, is_video = None, None, False

    def __init__(self, path: Path, source: DatSpikes) -> None:
        self.path, self._source = path, source
        self.files = spike_files(path) if path.is_dir() else [path]
        if not self.files:
            raise DataError("the folder holds no spikes", str(path), ", ".join(FORMATS), "correct --spike")
        self.stems = [file.stem for file in self.files]
        self.size = (source.geometry.height, source.geometry.width)
        known = source.rate != "match"
        self._white = source.rate if known else max(float(np.percentile(self._rates(0), 99.5)), 1e-6)

    def __len__(self) -> int:
        return len(self.files)

    def _rates(self, index: int) -> np.ndarray:
        with spike_errors_as_data_errors():
            file = open_spikes(self.files[index], self._source.geometry, self._source.remainder)
            span = self._source.timing.span(self.path.name, index, file.planes)
            return file.read(span.first, span.count).mean(axis=0, dtype=np.float32)

    def read(self, index: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB."""
        light = self._rates(index) / self._white
        grey = to_uint8(light if self._source.light == "display" else to_display(light))
        return np.repeat(grey[..., None], 3, axis=2)


def spike_clip(path: str | Path, gt: str | Path | None, section: Section) -> UserClip:
    """The clip of a folder with one spike file per frame, or of one file as a single frame; its input: LongExposures.

    gt: a sharp picture for each. Raises DataError where they do not belong together.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(
            "no such file or folder", str(path), "a spike file, or a folder of spike files", "check --spike"
        )
    info = nearest_info(path)
    source = SPIKE_SOURCES.build(with_size(section, info, path), "spike", info=info)
    frames = LongExposures(path, source)
    name = path.resolve().parent.name if path.name == "spike" else path.stem
    reference = Pictures(Path(gt)) if gt is not None else None
    if reference is not None:
        check_reference(frames, reference, 1)
    return UserClip(name, frames, UserSpikes(path, frames, name, source), reference)
