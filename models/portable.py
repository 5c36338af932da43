"""Weights files: reading them, loading them into a network, and the network that a file belongs to.

These files are those of a training, and those of the nine published networks.
"""

import logging
import math
from collections.abc import Iterator
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

# What our files say of their network; the last came later than the others.
LEARNED = ("scale", "netG", "spike_channels", "spike", "spike_data")
FROM_FILE = "the weights file"
# Keys under which published files and ours hold the state dict. A file may also be a state dict
# itself.
CONTAINERS = ("params_ema", "params", "model_state_dict", "state_dict")
# If fewer tensors match, the file most likely belongs to another network.
MIN_MATCHED = 0.9
# Tensors may share their numbers, but not each with several others.
MOST_SHARED = 4
LARGEST_NUMBER = 1e30  # its square is a number
SMALL_BYTES = 2**29  # of a network that is built from any file

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

# File stem -> arguments of the network. 002 follows its released file; KAIR's option file differs.
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

# The authors' tiles (frames, side); they overlap by 2 frames and 20 pixels.
RELEASED_TILES = {
    "001": (40, 128), "002": (40, 128), "003": (32, 128), "004": (32, 128), "005": (12, 256),
    "006": (18, 192),
    "007": (12, 256), "008": (12, 256), "009": (0, 0),
}  # fmt: skip


@dataclass
class LoadReport:
    """Names of tensors by what happened to them when a weights file was loaded."""

    matched: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def parts(self) -> set[bool]:
        """Whether the weights have tensors of the fusion (True), of the transformer (False), or of
        both.
        """
        return {
            k.startswith("fusion.")
            for k in (*self.matched, *self.widened, *self.mismatched, *self.unexpected)
        }

    @property
    def share(self) -> float:
        """Return the share of tensors that were loaded, in the parts that the weights have."""
        wanted = [k for k in self.missing if k.startswith("fusion.") in self.parts]
        total = len(self.matched) + len(self.widened) + len(wanted) + len(self.mismatched)
        return (len(self.matched) + len(self.widened)) / max(total, 1)

    def __str__(self) -> str:
        part = "fusion" if self.parts == {True} else "network"
        lines = [
            f"{len(self.matched)} tensors matched, {len(self.widened)} widened "
            f"({self.share:.0%} of the {part})"
        ]
        for name in ("widened", "missing", "mismatched", "unexpected"):
            keys = getattr(self, name)
            if keys:
                more = f", and {len(keys) - 6} more" if len(keys) > 6 else ""
                lines.append(f"  {name} ({len(keys)}): {', '.join(keys[:6])}{more}")
        return "\n".join(lines)


def read_weights(
    path: str | Path, prefer: str = "params", key: str = "the path"
) -> dict[str, Tensor]:
    """Return the state dict in a weights file, on the CPU.

    The file holds it directly or under one of CONTAINERS.

    prefer: the key to take if the file has several. key: what names the file, for the error.
    Raises CheckpointError if the file is missing or holds no weights.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            "no such weights file",
            str(path),
            "an existing file",
            f"correct {key}{address_of(path)}",
        )
    content = load_content(path)
    for name in (prefer, *CONTAINERS):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    is_state = isinstance(content, dict) and all(
        isinstance(k, str) and isinstance(content[k], Tensor) for k in content
    )
    if not is_state or not content:
        keys = (
            f" with the keys {sorted(map(str, content))[:5]}" if isinstance(content, dict) else ""
        )
        what = f"a {type(content).__name__}{keys} instead of a state dict"
        expected = f"tensors by name, directly or under {', '.join(CONTAINERS)}"
        raise CheckpointError(what, str(path), expected, "choose another file")
    _refuse_odd_tensors(content, path)
    return {own_name(key): value for key, value in content.items()}


def _refuse_odd_tensors(weights: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError for tensors that do not hold a number for each of their places."""
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
    """Raise CheckpointError for tensors of many more numbers than the file has room for."""
    size = path.stat().st_size
    stated = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    if stated > max(MOST_SHARED * size, SMALL_BYTES):
        raise CheckpointError(
            what=f"{len(weights)} tensors of {stated / 1e6:.0f} MB in a file of "
            f"{size / 1e6:.1f} MB",
            where=str(path),
            expected="a number in the file for each one of a tensor",
            do="save tensor.clone() of each, or download the file again",
        )


def own_name(key: str) -> str:
    """The name of a tensor without what DataParallel and torch.compile write around it."""
    return key.replace("_orig_mod.", "").removeprefix("module.")


def file_of(weights: str | Path) -> Path:
    """Return the path of weights: `weights` itself, or the file of "vrt/006", fetched once.

    Raises CheckpointError if there are no released weights of this name, or they cannot be had.
    """
    return released.local_file(str(weights), RELEASED, _most_bytes, _refuse_other_tensors)


def _released(name: str, path: Path, weights: dict[str, Tensor]) -> "SavedNetwork":
    """Describe the released network `name`, whose `weights` the file `path` holds."""
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


def _tensors_of(saved: "SavedNetwork") -> dict[str, Tensor]:
    """Return the state dict of a network, without content."""
    with torch.device("meta"):
        return saved.network().state_dict()


def _shapes_of(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in tensors.items()}


def _most_bytes(name: str) -> int:
    """Return the size above which a file does not hold the released network `name`."""
    tensors = _tensors_of(_released(name, Path(name), {})).values()
    return int(1.1 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)) + 5_000_000


def _refuse_other_tensors(path: Path, name: str) -> None:
    """Raise CheckpointError if a file does not hold the tensors of the released network `name`."""
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


def load_weights(
    net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False
) -> LoadReport:
    """Load `weights` into `net` by name.

    If conv_first has more input channels than its weight, the rest is zero.

    where: the source of the weights, for the error. strict: all names and shapes must match;
    otherwise 90 % of the network's tensors. Raises CheckpointError and leaves the network
    unchanged.
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

    net: the network, which may be on the device "meta". The rest: see `load_weights`.
    Raises CheckpointError.
    """
    own = net.state_dict()
    report = LoadReport(
        missing=[k for k in own if k not in weights],
        unexpected=[k for k in weights if k not in own],
    )
    fitting: dict[str, Tensor] = {}
    for key in sorted(own.keys() & weights.keys()):
        given, wanted = weights[key], own[key]
        if given.shape == wanted.shape:
            fitting[key] = given
            report.matched.append(key)
        elif key == "conv_first.weight" and (wide := widen_first(given, wanted, net)) is not None:
            fitting[key] = wide
            report.widened.append(f"{key} {tuple(given.shape)} -> {tuple(wanted.shape)}")
        else:
            report.mismatched.append(f"{key} {tuple(given.shape)}, network {tuple(wanted.shape)}")
    faults = report.missing + report.mismatched + report.unexpected + report.widened
    if (strict and faults) or report.share < MIN_MATCHED:
        expected = (
            "every tensor (strict)"
            if strict
            else f"at least {MIN_MATCHED:.0%} of the network's tensors"
        )
        do = "choose weights of the same depths, dims and window, or adapt netG to them"
        raise CheckpointError(f"the weights do not fit the network: {report}", where, expected, do)
    return report, fitting


def widen_first(given: Tensor, wanted: Tensor, net: nn.Module) -> Tensor | None:
    """Return `given` (E, K, 1, 3, 3) with zeros for the new input channels.

    Returns None if the shapes differ in another way.

    The input consists of groups of in_chans channels (the frame, then four corners of each of two
    neighbours), then the noise map. In each group the given channels come first.
    """
    if given.shape[0] != wanted.shape[0] or given.shape[2:] != wanted.shape[2:]:
        return None
    groups = 9 if getattr(net, "pa_frames", 0) else 1
    noise = int(getattr(net, "nonblind", False))
    narrow, full = given.shape[1] - noise, wanted.shape[1] - noise
    if narrow % groups or full % groups or not 0 < narrow < full:
        return None
    wide = given.new_zeros(wanted.shape)
    for group in range(groups):
        old, new = group * narrow // groups, group * full // groups
        wide[:, new : new + narrow // groups] = given[:, old : old + narrow // groups]
    if noise:
        wide[:, -1] = given[:, -1]
    return wide


def load_pretrained(
    net: nn.Module, path: str | None, strict: bool, which: str = "netG"
) -> LoadReport | None:
    """Load the weights at `path`, if given, into `net`, and log the report.

    The option is path.pretrained_<which>.

    netE takes the averaged weights of a file that has both.
    """
    if not path:
        return None
    own = "params" if which == "netG" else "ema_state_dict"
    path = str(file_of(path))
    weights = read_weights(path, own, f"path.pretrained_{which}, or set it to null")
    report = load_weights(net, weights, str(path), strict)
    logger.info("Pretrained %s %s: %s", which, path, report)
    return report


def refuse_larger(
    netG: dict[str, Any], spike_channels: int, weights: dict[str, Tensor], where: str
) -> None:
    """Raise CheckpointError if the options of one of our networks ask for more than `weights` hold.

    Ask before it is built, because its modules alone may take all memory or time. A block has a
    tensor or more, a layer of n features has n x n weights, a window of n tokens a table of n x n.
    No number of the options is larger than the number of weights.
    """
    values = sum(tensor.numel() for tensor in weights.values())
    numbers = list(_numbers_in([netG, spike_channels]))
    depths, dims, window = (
        list(_numbers_in(netG.get(key))) for key in ("depths", "embed_dims", "window_size")
    )
    needs = (
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


def _are_ours(options: Any) -> bool:
    """Whether the options in a weights file are those of this program, not of another one."""
    if not isinstance(options, dict):
        return False
    if not {*LEARNED} - {"spike_data"} <= options.keys() <= {*LEARNED}:
        return False
    has_numbers = all(type(options[key]) is int for key in ("scale", "spike_channels"))
    spikes = (options["spike"], options.get("spike_data"))
    has_sections = all(value is None or isinstance(value, dict) for value in spikes)
    return has_numbers and has_sections and isinstance(options["netG"], dict)


def _numbers_in(value: Any) -> Iterator[float]:
    """Yield the numbers in lists and tables within one another."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _numbers_in(inner)
    elif isinstance(value, (int, float)):
        yield min(LARGEST_NUMBER, abs(value))  # that one for NaN, too


@dataclass(frozen=True)
class SavedNetwork:
    """A weights file and the network it belongs to.

    netG: options of the network. spike_channels: S.
    spike: options of the spike representation, or None for RGB only.
    spike_data: rate, light and centre of the training spikes (see data/cameras/spike_source.py), or
    None if they are not known.
    known_from: where the options come from. released: name of the published network, or None.
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
        """The network without its weights. Raises CheckpointError if they cannot be its weights."""
        # The file holds the weights of SpyNet too; the file at spynet_path may no longer exist.
        netG = {**self.netG, **({"spynet_path": None} if "spynet_path" in self.netG else {})}
        if self.known_from != FROM_FILE:
            return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)
        if netG.get("net_type") in ("vrt", "fusion"):
            refuse_larger(netG, self.spike_channels, self.weights, str(self.path))
        try:
            return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)
        except OptionError as e:
            what = f"the options in the file make no network: {e.what}"
            do = "take the file as main_train_vrt.py wrote it, or give --opt FILE"
            raise CheckpointError(what, str(self.path), e.expected, do) from e

    def build(self) -> nn.Module:
        """Return the network with its weights, in eval mode on the CPU.

        Raises CheckpointError if a tensor does not fit.
        """
        _refuse_repeated_numbers(self.weights, self.path)
        with torch.device("meta"):  # it takes no memory there, however large it is
            compare_weights(self.network(), self.weights, str(self.path), strict=True)
        net = self.network()
        load_weights(net, self.weights, str(self.path), strict=True)
        return net.eval().requires_grad_(False)


def read_saved(path: str | Path, network: dict[str, Any] | None = None) -> SavedNetwork:
    """The weights in `path` (the averaged ones if there are any) and their network.

    The network is `network` (Options.portable of an option file) if given, else that of the options
    in the file, else the published one with exactly these tensors. Raises CheckpointError if the
    file holds no weights, the network is unknown, or the option file gives spike channels of
    another kind than those of the training: as many of them would pass unseen. Warns where their
    other settings differ.
    """
    path = file_of(path)
    weights = read_weights(path, prefer="ema_state_dict", key="--weights")
    content = load_content(path, mmap=is_zip(path))
    options = content.get("network", content.get("options"))  # a full checkpoint has both
    # Of an earlier version
    if isinstance(options, dict) and isinstance(datasets := options.get("datasets"), dict):
        section = datasets.get("train") or datasets.get("test")
        section = section if isinstance(section, dict) else {}
        about = {key: section.get(key) for key in ("spike", "spike_data")}
        options |= {"spike_channels": section.get("spike_channels") or 0, **about}
        options = {key: options[key] for key in LEARNED if key in options}
    if not _are_ours(options):
        options = None
    if network is not None:
        # The weights file describes its training data; the option file may name other data, or none
        # on this machine.
        options = options or {}
        network = {**network, "spike_data": options.get("spike_data") or network["spike_data"]}
        saved = SavedNetwork(path, weights, **network, known_from="the option file")
        if (
            (learned := options.get("spike")) is None
            or saved.spike is None
            or not saved.spec.spike_channels
        ):
            return saved
        for key, was, now in other_kinds(learned, saved.spike):
            what = f"the spike channels have {key} {now}, the weights were trained with {was}"
            raise CheckpointError(
                what, str(path), "the same", f"take other weights, or set spike.{key} to {was}"
            )
        changed = ", ".join(
            f"{key} {was} -> {now}"
            for key, (was, now) in checkpoint.differences(learned, saved.spike).items()
            if key.startswith("representation.") or key in ("context", "resize")
        )  # fmt: skip
        if changed and utils_dist.is_main_process():
            logger.warning(
                "the weights were trained with other spike channels than the options give: %s",
                changed,
            )
        return saved
    if options is not None:
        return SavedNetwork(path, weights, **options, known_from=FROM_FILE)
    shapes = _shapes_of(weights)
    # Networks with the same shapes differ in their training data only: the name of the file selects
    # one.
    for name in sorted(RELEASED, key=lambda name: (name[:4] != path.name[:4], name)):
        saved = _released(name, path, weights)
        if shapes == _shapes_of(_tensors_of(saved)):
            return saved
    what = f"the file does not say what network its {len(weights)} tensors belong to"
    expected = "weights saved by this project, or a published VRT network, 001 to 009"
    raise CheckpointError(
        what, str(path), expected, "give the option file of the training: --opt FILE"
    )
