"""Weights files: reading them, loading them into a network, and finding the network of a file.

A weights file may be

    ours        <step>_G.pth or <step>_E.pth, or a full checkpoint: the file describes its network
    published   one of the nine VRT files 001 to 009: its network is recognised by its tensors
    another's   a state dict of any network: an option file must describe the network

`read_weights` returns the tensors of a file. `load_weights` puts them into a network. `read_saved`
returns a `SavedNetwork`: the tensors with all that is needed to build their network. Our files
describe it in a table with the keys of LEARNED:

    {"scale": 1, "netG": {...}, "spike_channels": 9, "spike": {...}, "spike_data": {...}}

Files may be downloads from anywhere, so nothing in them is trusted: `refuse_larger` and the
functions near it refuse a file that would make this program run out of memory. No check may be
loosened, and each must come before what it protects.

Tests: tests/parts/models/test_weights.py, test_any_weights.py, test_hostile_weights.py
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models import released
from models.foreign_weights import load_content
from models.select_network import NETWORKS, other_kinds
from models.vrt.windows import refuse_other_index
from utils import utils_dist
from utils.contract import InputSpec, input_spec
from utils.errors import CheckpointError, OptionError, address_of
from utils.run import checkpoint
from utils.run.torch_file import is_zip

logger = logging.getLogger(__name__)

# What our files say of their network. Files of older versions lack "spike_data".
LEARNED = ("scale", "netG", "spike_channels", "spike", "spike_data")
FROM_FILE = "the weights file"
# Keys under which published files and ours hold the state dict. A file may also be a state dict
# itself.
CONTAINERS = ("params_ema", "params", "model_state_dict", "state_dict")
# If a smaller share of the tensors matches, the file most likely belongs to another network.
MIN_MATCHED = 0.9
# The tensors of a file may share numbers, e.g. a weight that two layers use. They may not state
# more than this many times the size of the file, because a small file could then fill the memory.
MOST_SHARED = 4
# Tensors of at most this many bytes are allowed, whatever the size of the file is.
SMALL_BYTES = 2**29
# Larger numbers in options count as this one, because its square is still a finite float.
LARGEST_NUMBER = 1e30

# ---- The published networks ------------------------------------------------------------------

_BIG: dict[str, Any] = {
    "upscale": 4, "depths": [8] * 7 + [4] * 6, "indep_reconsts": [11, 12],
    "embed_dims": [120] * 7 + [180] * 6,
    "num_heads": [6] * 13,
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "upscale": 1, "img_size": [6, 192, 192], "window_size": [6, 8, 8], "depths": [8] * 7 + [4] * 4,
    "indep_reconsts": [9, 10], "embed_dims": [96] * 7 + [120] * 4, "num_heads": [6] * 11,
}  # fmt: skip
_DEBLUR: dict[str, Any] = {**_SMALL, "pa_frames": 2, "deformable_groups": 16}
_VIMEO: dict[str, Any] = {
    **_BIG, "img_size": [8, 64, 64], "window_size": [8, 8, 8], "pa_frames": 4,
    "deformable_groups": 16,
}  # fmt: skip

# Name of a published file, without .pth -> arguments of its network. 002 follows its released file;
# KAIR's option file differs.
RELEASED: dict[str, dict[str, Any]] = {
    "001_VRT_videosr_bi_REDS_6frames": {
        **_BIG, "img_size": [6, 64, 64], "window_size": [6, 8, 8], "pa_frames": 2,
        "deformable_groups": 12,
    },
    "002_VRT_videosr_bi_REDS_16frames": {
        **_BIG, "img_size": [16, 64, 64], "window_size": [8, 8, 8], "pa_frames": 6,
        "deformable_groups": 24,
    },
    "003_VRT_videosr_bi_Vimeo_7frames": _VIMEO,
    "004_VRT_videosr_bd_Vimeo_7frames": _VIMEO,
    "005_VRT_videodeblurring_DVD": _DEBLUR,
    "006_VRT_videodeblurring_GoPro": _DEBLUR,
    "007_VRT_videodeblurring_REDS": _DEBLUR,
    "008_VRT_videodenoising_DAVIS": {**_DEBLUR, "nonblind_denoising": True},
    "009_VRT_videofi_Vimeo_4frames": {
        **_SMALL, "img_size": [4, 192, 192], "window_size": [4, 8, 8], "indep_reconsts": [],
        "pa_frames": 0,
    },
}  # fmt: skip

# Number of a published file -> the tiles (frames, side in pixels) with which its authors tested it.
# The tiles overlap by 2 frames and 20 pixels. 0 frames: the whole clip. 0 pixels: the whole frame.
RELEASED_TILES = {
    "001": (40, 128), "002": (40, 128), "003": (32, 128), "004": (32, 128), "005": (12, 256),
    "006": (18, 192),
    "007": (12, 256), "008": (12, 256), "009": (0, 0),
}  # fmt: skip


# ---- Reading a file --------------------------------------------------------------------------


def read_weights(
    path: str | Path, prefer: str = "params", key: str = "the path"
) -> dict[str, Tensor]:
    """Return the state dict in a weights file, on the CPU.

    The file holds it directly or under one of CONTAINERS.

    prefer: the container to take if the file has several. key: the option that names the file, for
    the error.

    Raises CheckpointError if the file is missing or holds no weights.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            what="no such weights file",
            where=str(path),
            expected="an existing file",
            do=f"correct {key}{address_of(path)}",
        )
    content = load_content(path)
    if isinstance(content, dict):
        for name in (prefer, *CONTAINERS):
            if isinstance(content.get(name), dict):
                content = content[name]
                break
    if not _is_state_dict(content):
        what = f"a {type(content).__name__}"
        if isinstance(content, dict):
            what += f" with the keys {sorted(map(str, content))[:5]}"
        raise CheckpointError(
            what=f"{what} instead of a state dict",
            where=str(path),
            expected=f"tensors by name, directly or under {', '.join(CONTAINERS)}",
            do="choose another file",
        )
    _refuse_odd_tensors(content, path)
    return {own_name(name): tensor for name, tensor in content.items()}


def _is_state_dict(content: Any) -> bool:
    """Whether this is a table of tensors by name, and not empty."""
    if not isinstance(content, dict) or not content:
        return False
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            return False
    return True


def own_name(key: str) -> str:
    """Return the name of a tensor without what DataParallel and torch.compile write around it.

    E.g. "module._orig_mod.conv_first.weight" -> "conv_first.weight".
    """
    return key.replace("_orig_mod.", "").removeprefix("module.")


def file_of(weights: str | Path) -> Path:
    """Return the path of weights: `weights` itself, or the file of "vrt/006", fetched once.

    Raises CheckpointError if there are no released weights of this name, or they cannot be had.
    """
    return released.local_file(str(weights), RELEASED, _most_bytes, _refuse_other_tensors)


def _refuse_odd_tensors(weights: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError for sparse or quantized tensors, and tensors of another device."""
    for key, tensor in weights.items():
        is_plain = tensor.layout is torch.strided and not tensor.is_quantized
        if not is_plain or tensor.device.type != "cpu":
            raise CheckpointError(
                what=f"{key} is no plain tensor: {tensor.layout}, {tensor.device}",
                where=str(path),
                expected="dense tensors of numbers",
                do="save tensor.dequantize().to_dense().cpu() of each",
            )


def _refuse_repeated_numbers(weights: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError if the tensors have many more numbers than the file has room for.

    E.g. a tensor that repeats one number a million times takes a few bytes in the file. Once it is
    copied into a network, it takes 4 MB.
    """
    size = path.stat().st_size
    stated = _bytes_of(weights.values())
    if stated > max(MOST_SHARED * size, SMALL_BYTES):
        raise CheckpointError(
            what=f"{len(weights)} tensors of {stated / 1e6:.0f} MB in a file of "
            f"{size / 1e6:.1f} MB",
            where=str(path),
            expected="a number in the file for each one of a tensor",
            do="save tensor.clone() of each, or download the file again",
        )


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---- Loading into a network ------------------------------------------------------------------


@dataclass
class LoadReport:
    """Names of tensors by what happened to them when a weights file was loaded."""

    # Loaded as they are.
    matched: list[str] = field(default_factory=list)
    # Loaded with zeros for further input channels, see `widen_first`.
    widened: list[str] = field(default_factory=list)
    # In the network alone.
    missing: list[str] = field(default_factory=list)
    # In the network and in the file, with different shapes.
    mismatched: list[str] = field(default_factory=list)
    # In the file alone.
    unexpected: list[str] = field(default_factory=list)

    def has_part(self, of_fusion: bool) -> bool:
        """Whether the file has tensors of the fusion operator, or of the rest of the network."""
        in_file = (*self.matched, *self.widened, *self.mismatched, *self.unexpected)
        return any(_is_of_fusion(name) == of_fusion for name in in_file)

    @property
    def share(self) -> float:
        """Return the share of the network's tensors that were loaded, 0 to 1.

        If the file lacks the whole fusion operator, or the whole rest, this part does not count:
        weights of an RGB network may start a network with spikes.
        """
        has_fusion = self.has_part(of_fusion=True)
        has_rest = self.has_part(of_fusion=False)
        missing = 0
        for name in self.missing:
            is_in_file = has_fusion if _is_of_fusion(name) else has_rest  # the part of this tensor
            if is_in_file:
                missing += 1
        loaded = len(self.matched) + len(self.widened)
        total = loaded + missing + len(self.mismatched)
        return loaded / max(total, 1)

    def __str__(self) -> str:
        is_fusion_alone = self.has_part(of_fusion=True) and not self.has_part(of_fusion=False)
        part = "fusion" if is_fusion_alone else "network"
        lines = [
            f"{len(self.matched)} tensors matched, {len(self.widened)} widened "
            f"({self.share:.0%} of the {part})"
        ]
        # The first six names of each kind are enough to see what is wrong.
        for kind in ("widened", "missing", "mismatched", "unexpected"):
            names = getattr(self, kind)
            if names:
                more = f", and {len(names) - 6} more" if len(names) > 6 else ""
                lines.append(f"  {kind} ({len(names)}): {', '.join(names[:6])}{more}")
        return "\n".join(lines)


def _is_of_fusion(name: str) -> bool:
    """Whether a tensor belongs to the fusion operator, e.g. "fusion.gate.weight"."""
    return name.startswith("fusion.")


def load_weights(
    net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False
) -> LoadReport:
    """Load `weights` into `net` by name.

    If conv_first of the network has more input channels than in the file, the weights of the
    further channels are zero: see `widen_first`.

    where: the source of the weights, for the error. strict: whether all names and shapes must
    match. Otherwise 90 % of the network's tensors must.

    Raises CheckpointError and leaves the network unchanged.
    """
    report, fitting = compare_weights(net, weights, where, strict)
    own = net.state_dict()
    for key in fitting:
        if key.endswith(".relative_position_index"):
            refuse_other_index(fitting[key], own[key], key, where)
    net.load_state_dict(fitting, strict=False)
    return report


def compare_weights(
    net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False
) -> tuple[LoadReport, dict[str, Tensor]]:
    """Return what `load_weights` would report, and the tensors that it would load.

    net: the network, which may be on the device "meta". The other arguments: see `load_weights`.

    Raises CheckpointError if the weights do not fit.
    """
    own = net.state_dict()
    report = LoadReport(
        missing=[name for name in own if name not in weights],
        unexpected=[name for name in weights if name not in own],
    )
    fitting: dict[str, Tensor] = {}
    # Compare the tensors that are in the network and in the file.
    for key in sorted(own.keys() & weights.keys()):
        given = weights[key]
        wanted = own[key]
        wide = None  # conv_first with further input channels
        if key == "conv_first.weight" and given.shape != wanted.shape:
            wide = widen_first(given, wanted, net)
        if given.shape == wanted.shape:
            fitting[key] = given
            report.matched.append(key)
        elif wide is not None:
            fitting[key] = wide
            report.widened.append(f"{key} {tuple(given.shape)} -> {tuple(wanted.shape)}")
        else:
            report.mismatched.append(f"{key} {tuple(given.shape)}, network {tuple(wanted.shape)}")

    # With `strict` nothing may differ. Otherwise a small share of the tensors may.
    faults = report.missing + report.mismatched + report.unexpected + report.widened
    is_refused = report.share < MIN_MATCHED or (strict and len(faults) > 0)
    if not is_refused:
        return report, fitting
    if strict:
        expected = "every tensor (strict)"
    else:
        expected = f"at least {MIN_MATCHED:.0%} of the network's tensors"
    raise CheckpointError(
        what=f"the weights do not fit the network: {report}",
        where=where,
        expected=expected,
        do="choose weights of the same depths, dims and window, or adapt netG to them",
    )


def widen_first(given: Tensor, wanted: Tensor, net: nn.Module) -> Tensor | None:
    """Return the first weight `given` (E, K, 1, 3, 3) with zeros for the new input channels.

    So a network with spikes starts with the weights of a network for RGB. The new channels have no
    effect at first.

    The input consists of groups of in_chans channels, then the noise map if there is one. With
    alignment there are nine groups: the frame, then four corners of each of two neighbours (see
    flow.aligned_input). In each group the given channels come first.

    Returns None if the shapes differ in another way.
    """
    if given.shape[0] != wanted.shape[0] or given.shape[2:] != wanted.shape[2:]:
        return None
    groups = 9 if getattr(net, "pa_frames", 0) else 1
    noise_channels = int(getattr(net, "nonblind", False))
    channels_given = given.shape[1] - noise_channels
    channels_wanted = wanted.shape[1] - noise_channels
    if channels_given % groups or channels_wanted % groups:
        return None
    if not 0 < channels_given < channels_wanted:
        return None
    width_given = channels_given // groups  # channels of a group
    width_wanted = channels_wanted // groups
    wide = given.new_zeros(wanted.shape)
    for group in range(groups):
        old = group * width_given
        new = group * width_wanted
        wide[:, new : new + width_given] = given[:, old : old + width_given]
    if noise_channels:
        wide[:, -1] = given[:, -1]
    return wide


def load_pretrained(
    net: nn.Module, path: str | None, strict: bool, which: str = "netG"
) -> LoadReport | None:
    """Load the weights at `path` into `net`, and log the report. Returns None without a path.

    which: "netG" or "netE". The option is path.pretrained_<which>. If a file has both, netE takes
    the averaged weights.
    """
    if not path:
        return None
    container = "params" if which == "netG" else "ema_state_dict"
    path = str(file_of(path))
    weights = read_weights(path, container, f"path.pretrained_{which}, or set it to null")
    report = load_weights(net, weights, str(path), strict)
    logger.info("Pretrained %s %s: %s", which, path, report)
    return report


# ---- A file and its network ------------------------------------------------------------------


@dataclass(frozen=True)
class SavedNetwork:
    """A weights file and the network it belongs to.

    path: the weights file.
    weights: its tensors by name.
    netG: options of the network.
    scale: size of the output / size of the input.
    spike_channels: spike channels per frame.
    spike: options of the spike representation, or None for RGB only.
    spike_data: rate, light and centre of the training spikes (see data/cameras/spike_source.py), or
    None if they are not known.
    known_from: where the options come from, in words, e.g. "the weights file".
    released: name of the published network, e.g. "006_VRT_videodeblurring_GoPro", or None.
    """

    path: Path
    weights: dict[str, Tensor]
    netG: dict[str, Any]
    scale: int
    spike_channels: int
    spike: dict[str, Any] | None
    known_from: str
    spike_data: dict[str, Any] | None = None
    released: str | None = None

    @cached_property
    def spec(self) -> InputSpec:
        """What input the network takes."""
        with torch.device("meta"):
            return input_spec(self.network())

    def network(self) -> nn.Module:
        """Build the network without its weights.

        Raises CheckpointError if the options in the file make no network, or a larger network than
        the weights in the file are for.
        """
        netG = dict(self.netG)
        if "spynet_path" in netG:
            # The weights of the flow network are in this file too. The file that spynet_path names
            # may no longer exist.
            netG["spynet_path"] = None
        if self.known_from != FROM_FILE:
            return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)
        if netG.get("net_type") in ("vrt", "fusion"):
            refuse_larger(netG, self.spike_channels, self.weights, str(self.path))
        try:
            return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)
        except OptionError as e:
            raise CheckpointError(
                what=f"the options in the file make no network: {e.what}",
                where=str(self.path),
                expected=e.expected,
                do="take the file as main_train_vrt.py wrote it, or give --opt FILE",
            ) from e

    def build(self) -> nn.Module:
        """Return the network with its weights, in eval mode on the CPU.

        Raises CheckpointError if a tensor does not fit.
        """
        # Compare on the device "meta" first: there a network takes no memory, however large it is.
        _refuse_repeated_numbers(self.weights, self.path)
        with torch.device("meta"):
            compare_weights(self.network(), self.weights, str(self.path), strict=True)
        net = self.network()
        load_weights(net, self.weights, str(self.path), strict=True)
        return net.eval().requires_grad_(False)


def read_saved(path: str | Path, network: dict[str, Any] | None = None) -> SavedNetwork:
    """Return the weights in a file, and their network. Averaged weights are preferred.

    network: Options.portable of an option file, or None. It decides which network this is:

        network is given                      the network of the option file
        else the file describes a network     the network in the file
        else a published network has exactly  this published network
        these tensors

    Raises CheckpointError if the file holds no weights, or the network is unknown, or the option
    file gives spike channels of another kind than those of the training. Warns if other settings of
    the spike channels differ.
    """
    path = file_of(path)
    weights = read_weights(path, prefer="ema_state_dict", key="--weights")
    options = _options_in(path)
    if network is not None:
        return _with_option_file(path, weights, options or {}, network)
    if options is not None:
        return SavedNetwork(path, weights, **options, known_from=FROM_FILE)

    # Some published networks have the same shapes, and differ in their training data only. So try
    # first those whose number is at the beginning of the file's name.
    of_number = [name for name in sorted(RELEASED) if name[:4] == path.name[:4]]  # e.g. "006_"
    others = [name for name in sorted(RELEASED) if name[:4] != path.name[:4]]
    shapes = _shapes_of(weights)
    for name in of_number + others:
        saved = _released(name, path, weights)
        if shapes == _shapes_of(_tensors_of(saved)):
            return saved
    raise CheckpointError(
        what=f"the file does not say what network its {len(weights)} tensors belong to",
        where=str(path),
        expected="weights saved by this project, or a published VRT network, 001 to 009",
        do="give the option file of the training: --opt FILE",
    )


def _options_in(path: Path) -> dict[str, Any] | None:
    """Return what one of our files says of its network: a table with the keys of LEARNED.

    Returns None if the file is not ours.
    """
    content = load_content(path, mmap=is_zip(path))
    # A full checkpoint has both: "network" describes the network, "options" is the option file.
    options = content.get("network", content.get("options"))
    if not isinstance(options, dict):
        return None
    # A file of an earlier version holds the option file, where the spikes are in a dataset section.
    datasets = options.get("datasets")
    if isinstance(datasets, dict):
        section = datasets.get("train") or datasets.get("test")
        if not isinstance(section, dict):
            section = {}
        options["spike_channels"] = section.get("spike_channels") or 0
        options["spike"] = section.get("spike")
        options["spike_data"] = section.get("spike_data")
        options = {key: options[key] for key in LEARNED if key in options}
    return options if _are_ours(options) else None


def _are_ours(options: dict[str, Any]) -> bool:
    """Whether the options in a weights file are those of this program, not of another one."""
    known = set(LEARNED)
    needed = known - {"spike_data"}
    names = set(options)
    if not needed <= names or not names <= known:
        return False
    has_numbers = all(type(options[key]) is int for key in ("scale", "spike_channels"))
    spikes = (options["spike"], options.get("spike_data"))
    has_sections = all(value is None or isinstance(value, dict) for value in spikes)
    return has_numbers and has_sections and isinstance(options["netG"], dict)


def _with_option_file(
    path: Path, weights: dict[str, Tensor], options: dict[str, Any], network: dict[str, Any]
) -> SavedNetwork:
    """Describe weights whose network an option file gives. Warns if spikes are read differently.

    options: what the weights file says of its network, or {}. network: Options.portable of the
    option file.

    Raises CheckpointError if the spike channels are of another kind than in the training.
    """
    # The weights file describes the data of its training. The option file may name other data, or
    # data that are not on this machine.
    spike_data = options.get("spike_data") or network["spike_data"]
    network = {**network, "spike_data": spike_data}
    saved = SavedNetwork(path, weights, **network, known_from="the option file")
    learned = options.get("spike")
    if learned is None or saved.spike is None or not saved.spec.spike_channels:
        return saved  # there are no two descriptions of spikes to compare

    # Spike channels of another kind, but of the same number, fit the weights. So refuse them here.
    for key, was, now in other_kinds(learned, saved.spike):
        raise CheckpointError(
            what=f"the spike channels have {key} {now}, the weights were trained with {was}",
            where=str(path),
            expected="the same",
            do=f"take other weights, or set spike.{key} to {was}",
        )
    changes = []
    for key, (was, now) in checkpoint.differences(learned, saved.spike).items():
        if key.startswith("representation.") or key in ("context", "resize"):
            changes.append(f"{key} {was} -> {now}")
    if changes and utils_dist.is_main_process():
        logger.warning(
            "the weights were trained with other spike channels than the options give: %s",
            ", ".join(changes),
        )
    return saved


def refuse_larger(
    netG: dict[str, Any], spike_channels: int, weights: dict[str, Tensor], where: str
) -> None:
    """Raise CheckpointError if the options of one of our networks ask for more than `weights` hold.

    Call this before the network is built, because its modules alone may take all memory or time.
    Four simple rules give the least that the weights must hold:

        depths        a block has at least one tensor
        embed_dims    a layer of n features has n x n weights
        window_size   a window of n tokens has a table of n x n numbers
        any number    no number in the options is larger than the number of weights

    where: the file, for the error.
    """
    values = sum(tensor.numel() for tensor in weights.values())
    numbers = list(_numbers_in([netG, spike_channels]))
    depths = list(_numbers_in(netG.get("depths")))
    dims = list(_numbers_in(netG.get("embed_dims")))
    window = list(_numbers_in(netG.get("window_size")))
    needs = (
        # key, what it needs, what the file has
        ("depths", sum(depths), len(weights)),
        ("embed_dims", max(dims, default=0) ** 2, values),
        ("window_size", math.prod(window) ** 2, values),
        ("a number", max(numbers, default=0), values),
    )
    for key, needed, held in needs:
        if needed > held:
            raise CheckpointError(
                what=f"the options in it make a larger network than its weights: {key} asks for "
                f"at least {needed:.3g} of what it has {held} of",
                where=where,
                expected=f"options of a network of {len(weights)} tensors with {values} numbers",
                do="take the file as main_train_vrt.py wrote it, or give --opt FILE",
            )


def _numbers_in(value: Any) -> Iterator[float]:
    """Yield the absolute values of the numbers in `value`, a number or nested lists and tables.

    Numbers above LARGEST_NUMBER, and NaN, count as LARGEST_NUMBER.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _numbers_in(inner)
    elif isinstance(value, (int, float)):
        # The order of the arguments matters: min(a, NaN) is a.
        yield min(LARGEST_NUMBER, abs(value))


# ---- Recognising a published network ---------------------------------------------------------


def _released(name: str, path: Path, weights: dict[str, Tensor]) -> SavedNetwork:
    """Describe the published network `name`, whose `weights` the file `path` holds."""
    netG = NETWORKS.resolve({"net_type": "vrt", **RELEASED[name]}, "netG").plain()
    return SavedNetwork(
        path,
        weights,
        netG=netG,
        scale=netG["upscale"],
        spike_channels=0,
        spike=None,
        known_from=f"the shapes of its tensors ({name})",
        released=name,
    )


def _tensors_of(saved: SavedNetwork) -> dict[str, Tensor]:
    """Return the state dict of a network, without content."""
    with torch.device("meta"):
        return saved.network().state_dict()


def _shapes_of(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in tensors.items()}


def _most_bytes(name: str) -> int:
    """Return the size above which a file does not hold the published network `name`.

    A file has its tensors, and a little more for their names.
    """
    tensors = _tensors_of(_released(name, Path(name), {}))
    return int(1.1 * _bytes_of(tensors.values())) + 5_000_000


def _refuse_other_tensors(path: Path, name: str) -> None:
    """Raise CheckpointError if a file does not hold the tensors of the published network `name`."""
    weights = read_weights(path)
    wanted = _shapes_of(_tensors_of(_released(name, path, {})))
    if _shapes_of(weights) != wanted:
        missing = [key for key in wanted if key not in weights]
        raise CheckpointError(
            what=f"what was downloaded is not {name}: {len(weights)} tensors, of which "
            f"{len(wanted) - len(missing)} have names of that network",
            where=str(path),
            expected=f"its {len(wanted)} tensors; missing: {', '.join(missing[:3]) or 'none'}",
            do=f"look at the address; unset {released.MIRROR}, or get the file by hand",
        )
