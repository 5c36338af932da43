"""Options of S-VRT, which are those of KAIR with spikes beside them, in our words."""

from __future__ import annotations

import json
from typing import Any

from data.frame_io import picture_size
from data.roots import list_root
from data.spike_info import DatasetInfo, load_info
from data.spike_source import channels_of
from scripts.parts.convert_tools import Conversion, leaves, look_up
from utils.errors import SpikeVRTError

MARKS = (
    "spike_h", "spike_w", "spike_flipud", "spike_channels", "input_pack_mode", "keep_legacy_l", "spike_reconstruction",
    "middle_tfp_center", "rgb_normalize", "spike_normalize", "dataroot_spike",
)  # fmt: skip
HALF_WINDOW = 20  # of S-VRT's TFP where the file does not give one
Values = dict[str, Any]


def is_svrt(values: Values) -> bool:
    """Whether a file has keys that only S-VRT has."""
    sections = [look_up(values, f"datasets.{split}") for split in ("train", "test")]
    own = set(MARKS) - {"dataroot_spike", "spike_channels"}  # our files have these two as well
    found = any(isinstance(s, dict) and own & s.keys() for s in sections)
    keys = ("netG.input_mode", "netG.optical_flow", "swanlab", "logfire", "datasets.train.spike.reconstruction")
    return found or any(isinstance(look_up(values, key), (dict, str)) for key in keys)


def convert(c: Conversion, spike_size: tuple[int, int] | None) -> None:
    """Fill `c`. spike_size: (h, w) of a plane, from the user."""
    spikes = {}
    for split in ("train", "test"):
        spikes[split] = _spike_section(c, split, spike_size)
        _pictures(c, split)
    _test_spikes(c, spikes)
    _network(c, spikes["train"] is not None)
    _per_gpu(c)
    for key in ("train.G_regularizer_orthstep", "train.G_regularizer_clipstep"):
        if c.get(key) is not None:
            c.unsaid[key] = "there is no such regularizer; its effect has not been measured"
    c.keep_rest()
    for split, section in spikes.items():
        if section:  # a key of the source that is left there is unknown, and will be named
            c.put(f"datasets.{split}.spike", {**section, **(_section(c.target, f"datasets.{split}.spike"))})


def _section(values: Values, where: str) -> Values:
    found = look_up(values, where)
    return found if isinstance(found, dict) else {}


def _spike_section(c: Conversion, split: str, spike_size: tuple[int, int] | None) -> Values | None:
    """Our `spike` section of a split, taken from the source; None where the split has no spikes."""
    where = f"datasets.{split}"
    if not any(c.has(f"{where}.{key}") for key in (*MARKS, "spike")):
        return None
    section: Values = {"type": "dat"}
    _plane_size(c, where, spike_size, section)
    if c.has(f"{where}.spike_flipud"):
        section["flip"] = c.take(f"{where}.spike_flipud")
        c.translated[f"{where}.spike_flipud"] = f"{where}.spike.flip = {json.dumps(section['flip'])}"
    section |= _representation(c, where)
    _normalization(c, where, section)
    _channels(c, where, section.get("representation"))
    c.drop(f"{where}.keep_legacy_l", "it only kept a second copy of the input in the batch")
    c.unsaid[f"{where}, missing spike files"] = "S-VRT replaces them by zeros; here they are an error"
    return section


def _plane_size(c: Conversion, where: str, given: tuple[int, int] | None, section: Values) -> None:
    h, w = c.take(f"{where}.spike_h"), c.take(f"{where}.spike_w")
    key, root = f"{where}.spike_h, spike_w", c.get(f"{where}.dataroot_spike")
    said = _size_text((h, w))
    if given is not None:
        section["h"], section["w"] = given
        c.translated[key] = f"{where}.spike.h, w = {given[0]}, {given[1]}, from --spike-size; the file says {said}"
        return
    if not isinstance(root, str):
        return
    try:
        info = load_info(root)
        if info.h is None:
            _size_from_files(c, where, root, (h, w), section)
            return
    except SpikeVRTError as e:
        c.problems[key] = (f"the data cannot be read: {e.what} [{e.where}]", e.do)
        return
    differs = f"; the file says {said}, which the data contradicts" if (info.h, info.w) != (h, w) else ""
    c.translated[key] = f"{where}.spike.h, w are taken from dataset.json, {info.h} x {info.w}{differs}"
    if info.light == "display":
        section["gamma"] = 2.2  # 2.2 / gamma = 1: the firing rates stay as S-VRT has them
    _tell_rate(c, where, info)


def _tell_rate(c: Conversion, where: str, info: DatasetInfo) -> None:
    if info.rate not in (None, 1.0):
        c.unsaid[f"{where}, firing rates"] = (
            f"dataset.json gives the rate at full light, {info.rate:g}, and channels are divided by it: they are "
            f"{1 / info.rate:.3g} times those of S-VRT"
        )


def _size_from_files(c: Conversion, where: str, root: str, said: tuple[Any, Any], section: Values) -> None:
    """The file's size where the data are here and agree; a problem where they do not; null where they are not here."""
    key, pictures = f"{where}.spike_h, spike_w", str(c.get(f"{where}.dataroot_lq"))
    spikes = _first_file(root, "spike", "dat")
    frame = _first_file(pictures, "blur", str(c.get(f"{where}.filename_ext", "png")))
    if spikes is None or frame is None:
        c.comments[f"{where}.spike"] = (
            f"h and w: from dataset.json beside the spikes, or to be added here. The original says {_size_text(said)}, "
            "which was not compared with the data (S-VRT's published 250 x 400 contradicts its data, 360 x 640)."
        )
        c.unsaid[key] = (
            f"{_size_text(said)} is not taken over, as the data are not here to compare; give --spike-size H W, or "
            "make a dataset.json beside the spikes"
        )
        return
    (path, size), picture = spikes, picture_size(frame[0])
    fits = [
        (picture[0] // r, picture[1] // r)
        for r in range(1, 17)
        if _fits(size, picture, (picture[0] / r, picture[1] / r))
    ]
    if said in fits:
        section["h"], section["w"] = said
        c.translated[key] = f"{where}.spike.h, w = {said[0]}, {said[1]}, which the data agree with"
        return
    shown = " or ".join(f"{h} x {w} ({size * 8 // (h * w)} planes)" for h, w in fits[:4]) or "no size in whole pixels"
    c.problems[key] = (
        f"{_size_text(said)} contradicts the data: {path} has {size} bytes beside pictures of {picture[0]} x "
        f"{picture[1]}; {shown} would fit", "give --spike-size H W (scripts/spike_tool.py info FILE --picture FRAME)",
    )  # fmt: skip


def _size_text(size: tuple[Any, Any]) -> str:
    return "nothing" if None in size else f"{size[0]} x {size[1]}"


def _fits(size: int, picture: tuple[int, int], plane: tuple[float, float]) -> bool:
    """Whether a file of `size` bytes can hold at least 9 planes of this size, a whole fraction of the picture's."""
    is_whole = all(n == int(n) for n in plane) and picture[0] * plane[1] == picture[1] * plane[0]
    bits = int(plane[0] * plane[1])
    return is_whole and bits % 8 == 0 and size % (bits // 8) == 0 and size // (bits // 8) > 8


def _first_file(root: str, folder: str, ext: str) -> tuple[str, int] | None:
    """Path and size of the first file below a data root; None where there is none."""
    try:
        files = next(filter(None, list_root(root, folder, ext).values()), {})
    except SpikeVRTError:
        return None
    return next(((entry.path, entry.size) for _, entry in sorted(files.items())), None)


def _representation(c: Conversion, where: str) -> Values:
    """`representation`, and `center` where it counts."""
    key, other = f"{where}.spike.reconstruction", f"{where}.spike_reconstruction"
    given = [name for name in (key, other) if c.has(name)]
    nested = c.take(key, {})
    nested = {"type": nested} if isinstance(nested, str) else dict(nested or {})
    own = set(nested)
    flat = {"type": c.take(other), "middle_tfp_center": c.take(f"{where}.middle_tfp_center")}
    if isinstance(flat["type"], dict):
        flat |= flat["type"]
    for name, value in flat.items():
        if value is not None and nested.setdefault(name, value) != value:
            second = f"{where}.{name}" if name == "middle_tfp_center" else other
            c.problems[f"{second}, {key}.{name}"] = (f"{value!r} and {nested[name]!r} are given", f"--drop {second}")
    kind, bins = nested.pop("type", "spikecv_tfp"), nested.pop("num_bins", None)
    center, half = nested.pop("middle_tfp_center", None), nested.pop("half_win_length", nested.pop("half_window", None))
    window = nested.pop("window", None)
    for name in nested:
        place = f"{key if name in own else other}.{name}"
        c.problems[place] = ("unknown to this script", f"--drop {place}, if it may be left out")
    bins = bins or c.get(f"{where}.spike_channels") or 4
    found = _known_representation(c, key, str(kind), bins, half, window)
    if not found:
        names = "spikecv_tfp, middle_tfp, spikecv_tfi, raw_window, encoding25"
        what = f"{kind!r} has no counterpart; those of {names} do"
        c.problems[key] = (what, f"--drop {' '.join(given)}, to write tfp with {bins} bins instead")
        return {}
    c.translated[key] = f"{where}.spike.representation = {json.dumps(found)}"
    if center is not None and kind != "middle_tfp":
        c.dropped[f"{where}.middle_tfp_center"] = f"only middle_tfp uses it, not {kind}"
    return {"representation": found, **({"center": center} if center is not None and kind == "middle_tfp" else {})}


def _known_representation(
    c: Conversion, key: str, kind: str, bins: int, half: int | None, window: int | None
) -> Values:
    floored = (
        "S-VRT rounds it down to a multiple of 1/255, we do not: our channels, in [0, 1], are 0.002 higher on average, "
        "at most 0.004"
    )
    if kind in ("spikecv_tfp", "tfp"):
        c.unsaid[f"{key}, rounding"] = floored
        return {"type": "tfp", "half_window": half or HALF_WINDOW, "num_bins": bins}
    if kind == "middle_tfp":
        c.unsaid[f"{key}, middle_tfp"] = (
            f"S-VRT averages 2 h planes and stretches each frame to [0, 1] by its minimum and maximum, which loses the "
            f"brightness; here it is the mean of 2 h + 1 planes as it is, h = {half or HALF_WINDOW}"
            + ("" if half else " (assumed: the file does not give it)")
        )
        return {"type": "tfp", "half_window": half or HALF_WINDOW}
    if kind in ("spikecv_tfi", "tfi", "middle_tfi"):
        c.unsaid[f"{key}, rounding"] = floored
        return {"type": "tfi", "half_window": half or HALF_WINDOW}
    if kind in ("raw_window", "raw"):
        return {"type": "raw", "window": window or 21}
    if kind == "encoding25":
        return {"type": "encoding25", "num_windows": bins}
    return {}


def _normalization(c: Conversion, where: str, section: Values) -> None:
    mean, std = (c.take(f"{where}.spike_normalize.{name}") for name in ("mean", "std"))
    c.drop(f"{where}.spike_normalize", "null changes nothing")
    means, stds = ([v] if not isinstance(v, list) else v for v in (mean or 0.0, std or 1.0))
    key = f"{where}.spike_normalize"
    if mean is None and std is None:
        return
    is_scale = all(isinstance(s, (int, float)) and s == stds[0] for s in stds) and len(stds) > 0
    if is_scale and all(m == 0 for m in means):
        if stds[0] == 1:
            c.dropped[key] = "mean 0 and std 1 change nothing"
        else:
            section["rate"] = float(stds[0])
            c.translated[key] = f"{where}.spike.rate = {stds[0]:g}: channels are divided by it"
        return
    c.unsaid[key] = (
        f"mean {means}, std {stds}: a change of scale and offset that the first convolution learns; not applied"
    )


def _channels(c: Conversion, where: str, representation: Values | None) -> None:
    """`spike_channels` follows from the representation here; it must agree."""
    count = c.get(f"{where}.spike_channels")
    try:
        found = channels_of(representation) if representation else count
    except SpikeVRTError as e:
        c.problems[f"{where}.spike.reconstruction"] = (e.what, "correct its keys in the original")
        return
    if count not in (None, found):
        what = f"{count}, but {json.dumps(representation)} has {found} channels"
        c.problems[f"{where}.spike_channels"] = (what, f"--drop {where}.spike_channels, or correct the reconstruction")
    c.drop(f"{where}.spike_channels", f"it follows from the representation, {found}")


def _pictures(c: Conversion, split: str) -> None:
    where = f"datasets.{split}"
    if c.get(f"{where}.rgb_normalize"):
        c.unsaid[f"{where}.rgb_normalize"] = (
            f"{c.take(f'{where}.rgb_normalize')!r}: S-VRT scales the input to about [-2.1, 2.6] while the sharp frames "
            "stay in [0, 1], and VRT adds its input to its output; here both are in [0, 1], and weights trained the "
            "other way do not fit"
        )
    c.drop(f"{where}.rgb_normalize", "null changes nothing")
    if c.has(f"{where}.scale"):
        scale = c.get(f"{where}.scale")
        if scale != c.get("scale", scale):
            c.problems[f"{where}.scale"] = (f"{scale}, but scale is {c.get('scale')}", f"--drop {where}.scale")
        c.drop(f"{where}.scale", "it follows from the sizes of the pictures and must be `scale`")


def _test_spikes(c: Conversion, spikes: dict[str, Values | None]) -> None:
    """S-VRT's test section may name no spikes; a network that reads them needs them there too."""
    section = c.get("datasets.test")
    if not spikes["train"] and c.get("datasets.test.dataset_type") == "TestDataset":
        c.take("datasets.test.dataset_type")
        c.put("datasets.test.dataset_type", "VideoRecurrentTestDataset")
        c.translated["datasets.test.dataset_type"] = "TestDataset -> VideoRecurrentTestDataset, without spikes"
    if not spikes["train"] or not isinstance(section, dict) or not section:
        return
    name = section.get("dataset_type")
    if name != "TestDatasetRGBSpike":
        c.take("datasets.test.dataset_type")
        c.put("datasets.test.dataset_type", "TestDatasetRGBSpike")
        c.translated["datasets.test.dataset_type"] = f"{name} -> TestDatasetRGBSpike: the network reads spikes"
    if spikes["test"] is None:
        spikes["test"] = json.loads(json.dumps(spikes["train"]))
        if "datasets.train.spike" in c.comments:
            c.comments["datasets.test.spike"] = c.comments["datasets.train.spike"]
    root = c.get("datasets.train.dataroot_spike")
    if "dataroot_spike" not in section and isinstance(root, str) and root.rstrip("/").endswith("train"):
        place = f"{root.rstrip('/')[: -len('train')]}test"
        note = "assumed: the original has no spikes for testing"
        c.put("datasets.test.dataroot_spike", place, f"{note[0].upper()}{note[1:]}.")
        c.translated["datasets.test"] = f"dataroot_spike = {place}, {note}; its spike section is that of training"


def _network(c: Conversion, has_spikes: bool) -> None:
    if has_spikes:
        c.drop("netG.in_chans", "it follows from netG.fusion and the spike channels")
    modes = {
        key: c.take(key)
        for key in ("netG.input_mode", *(f"datasets.{s}.input_pack_mode" for s in ("train", "test")))
        if c.has(key)
    }
    for key, value in modes.items():
        if value != "concat":
            what = f"{value!r}: S-VRT's other ways to join RGB and spikes have no counterpart"
            c.problems[key] = (what, f"--drop {key}, and give netG.fusion=exposure, gated, concat or none")
    if modes:
        c.put("netG.fusion", {"type": "concat"})
    if modes and all(value == "concat" for value in modes.values()):
        c.translated[", ".join(modes)] = "netG.fusion = concat"
    if "netG.optical_flow" in c.dropped:
        c.unsaid["netG.optical_flow"] = "its weights went with it: give netG.spynet_path=FILE, or flow starts at 0"
    module, checkpoint = c.take("netG.optical_flow.module"), c.take("netG.optical_flow.checkpoint")
    if module not in (None, "spynet"):
        what = f"{module!r}: the only flow network here is SpyNet, on the RGB frames"
        c.problems["netG.optical_flow.module"] = (what, "--drop netG.optical_flow, and give netG.spynet_path=FILE")
        c.take("netG.optical_flow")
    elif module or checkpoint:
        for key, value in leaves(c.take("netG.optical_flow", {}), "netG.optical_flow"):
            if value in ({}, None):
                c.dropped[key] = "it says nothing"
            else:
                c.problems[key] = ("SpyNet has no parameters here", f"--drop {key}, if it may be left out")
        c.put("netG.spynet_path", checkpoint)
        c.translated["netG.optical_flow"] = f"netG.spynet_path = {json.dumps(checkpoint)}"


def _per_gpu(c: Conversion) -> None:
    """S-VRT, like KAIR, gives the totals of all GPUs; our keys are those of one GPU."""
    ids = c.get("gpu_ids")
    gpus = len(ids) if c.get("dist") and isinstance(ids, list) else 1
    c.drop("datasets.test.dataloader_shuffle", "clips are tested in order")
    for name in ("dataloader_num_workers", "dataloader_batch_size"):
        c.drop(f"datasets.test.{name}", "clips are tested one after the other, without a loader")
        key = f"datasets.train.{name}"
        total = c.get(key)
        if gpus < 2 or not isinstance(total, int):
            continue
        each = max(total // gpus, min(total, 1))
        c.take(key)
        c.put(key, each, f"Per GPU; the original says {total} for {gpus} GPUs in all.")
        c.translated[key] = f"{total} for {gpus} GPUs in all -> {each} per GPU, {each * gpus} in all"
        if each * gpus != total:
            near = next(n for n in range(gpus, 0, -1) if total % n == 0)
            c.unsaid[key] = (
                f"{total} in all is no multiple of {gpus} GPUs: {each} per GPU is {each * gpus} in all; "
                f"{near} GPU{'s' if near > 1 else ''} would divide {total}"
            )
