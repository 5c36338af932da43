"""Option keys that several datasets share; the keys of a dataset are a subclass of some of these sections."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from data.camera import CAMERAS
from data.io_backend import IO_BACKENDS
from data.spike_source import SPIKE_SOURCES
from utils.options.section import Section


class FileReading(Section):
    """How files are read; every dataset of clips has these keys."""

    io_backend: Annotated[Any, IO_BACKENDS] = Field("disk", description="How files are read.")
    cache_data: bool = Field(False, description="Keep decoded pictures in memory.")


class ClipFiles(FileReading):
    """Where the frames are."""

    dataroot_lq: str = Field(description="Folder (or LMDB) of the blurry frames.")
    dataroot_gt: str | None = Field(
        None,
        description="Folder of the sharp frames; null for real data: to test on, or to train with a loss without gt.",
    )
    lq_folder: str = Field("blur", description="Folder of the blurry frames within a clip, where it has such folders.")
    meta_info_file: str | None = Field(None, description="List of the clips to use; null: all folders.")
    filename_tmpl: str | None = Field(None, description='Form of the frame numbers, e.g. "08d"; null: any.')
    filename_ext: str = Field("png", description="Ending of the frames' names.")


class SharpFiles(Section):
    """Training needs sharp frames."""

    dataroot_gt: str = Field(description="Folder of the sharp frames.")


class Instants(Section):
    """Several sharp frames of each exposure."""

    dataroot_gt_instants: str | None = Field(
        None, description="Folder of several sharp frames for each blurry one, <frame>_<number>; null: none."
    )


class Spikes(Section):
    """The meaning of the spikes."""

    spike: Annotated[Any, SPIKE_SOURCES] = Field(
        "dat", description="What the spikes mean, and how they become channels."
    )
    camera: Annotated[Any, CAMERAS] = Field(
        None, description='Changes of the spike camera to train against, "perturb" or its options; null for none.'
    )


class SpikeFiles(Spikes, ClipFiles):
    """The frames and spikes in folders."""

    dataroot_spike: str = Field(description="Folder of the spike files.")


class Crops(Section):
    """Length, crop and augmentation of a training sample."""

    num_frame: int = Field(ge=1, description="In training: frames of a sample.")
    gt_size: int = Field(ge=1, description="Side of the crop of the sharp frames, in pixels.")
    interval_list: list[Annotated[int, Field(ge=1)]] = Field(
        [1], min_length=1, description="Steps from frame to frame, of which one is drawn for each sample."
    )
    random_reverse: bool = Field(False, description="Play half of the samples backwards.")
    use_hflip: bool = Field(False, description="Mirror half of the samples.")
    use_rot: bool = Field(False, description="Turn samples by multiples of 90 degrees.")


class WholeClips(Section):
    """The tested part of a clip."""

    num_frame: int = Field(-1, description="In testing: only so many frames of each clip; -1 for all.")
