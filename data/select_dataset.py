"""Datasets by name. A new dataset is a new data/dataset_<name>.py whose class registers itself here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from data.clip_index import Source, held_out
from data.spike_source import SPIKE_SOURCES, build_spikes, channels_of, describe_spikes
from utils.utils_errors import OptionError
from utils.utils_registry import Registry

DATASETS = Registry("dataset", "dataset_type")


def build_dataset(section: dict[str, Any], split: str, seed: int) -> Dataset:
    """The dataset of a `datasets.<split>` section. Keys that configure the loader are left to the loader.

    seed: all random draws of a sample follow from (seed, epoch, index).
    Raises OptionError for wrong keys, DataError (with all problems) for wrong files.
    """
    name = section.get("dataset_type")
    keys = set(DATASETS.keys(name)) if name in DATASETS.names() else set()
    part = {key: value for key, value in section.items() if key in keys or key == "dataset_type"}
    dataset = DATASETS.build(part, f"datasets.{split}", seed=seed)
    if dataset.is_training != (split == "train"):
        raise OptionError(
            f"datasets.{split}.dataset_type is {name}", f"datasets.{split}.dataset_type",
            f"a dataset for {'training' if split == 'train' else 'testing'}: "
            f"{', '.join(n for n in DATASETS.names() if ('Train' in n) == (split == 'train'))}", "choose one of these",
        )  # fmt: skip
    return dataset


def section_spike_channels(section: dict[str, Any]) -> int:
    """S, the spike channels of a dataset section; 0 for RGB-only data. Reads no file."""
    if section.get("spike") is None:
        return 0
    spike = section["spike"]
    spike = {"type": spike} if isinstance(spike, str) else spike
    return channels_of(SPIKE_SOURCES.resolve(spike, "spike")["representation"])


def set_spike_channels(opt: dict[str, Any]) -> None:
    """Put S, and what is known of the spikes, into the dataset sections of resolved options.

    The data know it; the networks need S, and those who use the weights need the rest. Reads dataset.json.
    """
    for section in filter(None, opt["datasets"].values()):
        section["spike_channels"] = section_spike_channels(section)
        if section["spike_channels"]:
            section["spike_data"] = describe_spikes(section["spike"], section.get("dataroot_spike") or "")


def section_source(section: dict[str, Any], split: str) -> Source:
    """Where the clips of a `datasets.<split>` section are, without looking at them."""
    roots = {key: section.get(key) for key in ("dataroot_lq", "dataroot_gt", "dataroot_spike", "meta_info_file")}
    names = {key: section[key] for key in ("lq_folder", "filename_tmpl", "filename_ext") if section.get(key)}
    spikes = None
    if section.get("spike") is not None and roots["dataroot_spike"]:
        spikes = build_spikes(section["spike"], roots["dataroot_spike"], f"datasets.{split}.spike")
    return Source(**roots, **names, spikes=spikes, left_out=held_out(section.get("val_partition")))


for _path in sorted(Path(__file__).parent.glob("dataset_*.py")):
    importlib.import_module(f"data.{_path.stem}")
