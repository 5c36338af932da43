"""Weights files: reading them, loading them into a network, and finding the network of a file.

A weights file may be

    ours        <step>_G.pth or <step>_E.pth, or a full checkpoint: the file describes its network
    published   one of the nine VRT files 001 to 009: its network is recognised by its tensors
    another's   a state dict of any network: an option file must describe the network

Three functions are for callers:

    read_weights(path) -> tensors by name                     load_weights(net, tensors) -> report
    read_saved(path)   -> SavedNetwork, the tensors with all that is needed to build their network

A file of ours describes its network in a table with the keys of DESCRIPTION:

    {"scale": 1, "netG": {...}, "spike_channels": 9, "spike": {...}, "spike_data": {...}}

Files may be downloads from anywhere, so nothing in them is trusted: e.g. a file of 1 kB may state a
tensor of 1 TB. The functions whose names begin with "refuse" raise an error before this program
would run out of memory.

What must stay: each check, and its place before the code that it protects. test_hostile_weights.py
has a file for each kind of attack. The limits have their reasons beside them below.
Free to change: the texts of errors, and how a report is shown.

Tests: tests/parts/models/test_weights.py, test_any_weights.py; for the checks
test_hostile_weights.py
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models import released
from models.foreign_weights import load_content
from models.select_network import NETWORKS, kind_differences
from models.vrt.windows import refuse_other_index
from utils import utils_dist
from utils.contract import InputSpec, input_spec
from utils.errors import CheckpointError, OptionError, address_of
from utils.run import changed_options
from utils.run.torch_file import is_zip

logger = logging.getLogger(__name__)

# The keys under which our files describe their network. They are part of the file format: a new
# key must be optional, as "spike_data" is, which files of older versions lack.
DESCRIPTION = ("scale", "netG", "spike_channels", "spike", "spike_data")
# The value of SavedNetwork.known_from for a network that its file describes.
FROM_FILE = "the weights file"
# Keys under which published files and ours hold the state dict. The first key found wins. A file
# may also be a state dict itself.
CONTAINERS = ("params_ema", "params", "model_state_dict", "state_dict")
# Smallest share of the tensors that must match without `strict`. If a smaller share matches, the
# file most likely belongs to another network, and a training would begin almost from random
# weights without a word. With 1.0, a network with one more layer than the file could not begin
# with the file.
LEAST_MATCHED = 0.9
# The tensors of a file may share numbers, e.g. a weight that two layers use. So all tensors
# together may be larger than the file, but at most this many times. A hostile file repeats one
# number millions of times, and would fill the memory; a real file shares few of its numbers.
MOST_TIMES_FILE_SIZE = 4
# Tensors of at most this many bytes (537 MB) in all are allowed, whatever the size of the file is.
ALWAYS_ALLOWED_BYTES = 2**29
# A number above this one in the options of a file counts as this one (`_numbers_in`). The check
# squares some of them, and the square, 1e60, is still a finite float.
LARGEST_NUMBER = 1e30
# Number of names of each kind that the report of a loaded file shows.
SHOWN_NAMES = 6

# ---- The published networks ------------------------------------------------------------------
#
# Arguments of VRT, which explains them (models/network_vrt.py). `[8] * 7 + [4] * 6` are the seven
# stages and the six layers of stage 8. The values decide the names and shapes of the tensors, by
# which a file is recognised, so they must stay.

# Super-resolution: four times the height and width.
_SUPER_RESOLUTION: dict[str, Any] = {
    "upscale": 4,
    "depths": [8] * 7 + [4] * 6,
    "indep_reconsts": [11, 12],
    "embed_dims": [120] * 7 + [180] * 6,
    "num_heads": [6] * 13,
}
# The size of the frames stays. Stage 8 has four layers.
_SAME_SIZE: dict[str, Any] = {
    "upscale": 1,
    "img_size": [6, 192, 192],
    "window_size": [6, 8, 8],
    "depths": [8] * 7 + [4] * 4,
    "indep_reconsts": [9, 10],
    "embed_dims": [96] * 7 + [120] * 4,
    "num_heads": [6] * 11,
}
_DEBLUR: dict[str, Any] = {**_SAME_SIZE, "pa_frames": 2, "deformable_groups": 16}
_VIMEO: dict[str, Any] = {
    **_SUPER_RESOLUTION,
    "img_size": [8, 64, 64],
    "window_size": [8, 8, 8],
    "pa_frames": 4,
    "deformable_groups": 16,
}

# Name of a published file, without .pth -> arguments of its network. KAIR's option file for 002 has
# other values. Those below are right, because the tensors of the released file fit them.
RELEASED: dict[str, dict[str, Any]] = {
    "001_VRT_videosr_bi_REDS_6frames": {
        **_SUPER_RESOLUTION,
        "img_size": [6, 64, 64],
        "window_size": [6, 8, 8],
        "pa_frames": 2,
        "deformable_groups": 12,
    },
    "002_VRT_videosr_bi_REDS_16frames": {
        **_SUPER_RESOLUTION,
        "img_size": [16, 64, 64],
        "window_size": [8, 8, 8],
        "pa_frames": 6,
        "deformable_groups": 24,
    },
    "003_VRT_videosr_bi_Vimeo_7frames": _VIMEO,
    "004_VRT_videosr_bd_Vimeo_7frames": _VIMEO,
    "005_VRT_videodeblurring_DVD": _DEBLUR,
    "006_VRT_videodeblurring_GoPro": _DEBLUR,
    "007_VRT_videodeblurring_REDS": _DEBLUR,
    "008_VRT_videodenoising_DAVIS": {**_DEBLUR, "nonblind_denoising": True},
    "009_VRT_videofi_Vimeo_4frames": {
        **_SAME_SIZE,
        "img_size": [4, 192, 192],
        "window_size": [4, 8, 8],
        "indep_reconsts": [],
        "pa_frames": 0,
    },
}

# Number of a published file -> the tiles (frames, side in pixels) with which its authors tested it.
# The tiles overlap by 2 frames and 20 pixels. 0 frames means the whole clip, 0 pixels the whole
# frame.
RELEASED_TILES = {
    "001": (40, 128),
    "002": (40, 128),
    "003": (32, 128),
    "004": (32, 128),
    "005": (12, 256),
    "006": (18, 192),
    "007": (12, 256),
    "008": (12, 256),
    "009": (0, 0),
}


# ---- Reading a file --------------------------------------------------------------------------


def read_weights(
    path: str | Path, prefer: str = "params", key: str = "the path"
) -> dict[str, Tensor]:
    """Return the state dict in a weights file, on the CPU.

    The file is a state dict, or holds it under one of the keys CONTAINERS.

    prefer: the key to take if the file has several. key: the option that names the file, for the
    error.

    Raises CheckpointError if the file is missing or holds no weights.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            what="no such weights file",
            where=str(path),
            expected="an existing file",
            # `address_of` adds where to download the file, if it is a published one.
            do=f"correct {key}{address_of(path)}",
        )
    content = load_content(path)
    # If the file holds its state dict under a key, take what is under the key.
    if isinstance(content, dict):
        for name in (prefer, *CONTAINERS):
            if isinstance(content.get(name), dict):
                content = content[name]
                break
    if not _is_state_dict(content):
        what = f"a {type(content).__name__}"
        if isinstance(content, dict):
            keys = sorted(str(name) for name in content)
            what += f" with the keys {keys[:5]}"  # five keys are enough to recognise the file
        raise CheckpointError(
            what=f"{what} instead of a state dict",
            where=str(path),
            expected=f"tensors by name, directly or under {', '.join(CONTAINERS)}",
            do="choose another file",
        )
    _refuse_odd_tensors(content, path)
    return {without_wrappers(name): tensor for name, tensor in content.items()}


def _is_state_dict(content: Any) -> bool:
    """Return whether `content` is a table of tensors by name, and not empty."""
    if not isinstance(content, dict) or not content:
        return False
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            return False
    return True


def without_wrappers(name: str) -> str:
    """Return the name of a tensor without what DataParallel and torch.compile add to it.

    E.g. "module._orig_mod.conv_first.weight" -> "conv_first.weight".
    """
    return name.replace("_orig_mod.", "").removeprefix("module.")


def file_of(weights: str | Path) -> Path:
    """Return the path of weights. For a name such as "vrt/006", fetch the published file once.

    Raises CheckpointError if there are no published weights of this name, or if they cannot be
    fetched.
    """
    # Before the downloaded file gets its final name, `size_limit` bounds its size, and `check`
    # refuses a file with the tensors of another network.
    return released.local_file(
        str(weights), released=RELEASED, size_limit=_most_bytes, check=_refuse_other_tensors
    )


def _refuse_odd_tensors(weights: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError for sparse or quantized tensors, and tensors of another device."""
    for name, tensor in weights.items():
        is_dense = tensor.layout is torch.strided
        if not is_dense or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(
                what=f"{name} is no plain tensor: {tensor.layout}, {tensor.device}",
                where=str(path),
                expected="dense tensors of numbers",
                do="save tensor.dequantize().to_dense().cpu() of each",
            )


def _refuse_repeated_numbers(weights: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError if the tensors have many more numbers than the file has room for.

    E.g. a tensor that repeats one number a million times takes a few bytes in the file. Its copy in
    a network takes 4 MB.
    """
    file_bytes = path.stat().st_size
    tensor_bytes = _bytes_of(weights.values())
    most_bytes = max(MOST_TIMES_FILE_SIZE * file_bytes, ALWAYS_ALLOWED_BYTES)
    if tensor_bytes > most_bytes:
        raise CheckpointError(
            what=f"{len(weights)} tensors of {tensor_bytes / 1e6:.0f} MB in a file of "
            f"{file_bytes / 1e6:.1f} MB",
            where=str(path),
            expected="one number in the file for each number of a tensor",
            do="save tensor.clone() of each, or download the file again",
        )


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory that copies of the tensors take, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---- Loading into a network ------------------------------------------------------------------
#
# What must stay: weights that do not fit are refused, and leave the network as it was
# (test_weights_of_another_network_are_refused_and_change_nothing).


@dataclass
class LoadReport:
    """What happened to each tensor when a weights file was loaded: five lists of names.

    `loaded_share` decides whether the file is refused. The log shows the report as a text.
    """

    # Loaded as they are.
    matched: list[str] = field(default_factory=list)
    # Loaded with zeros for the input channels that the file does not have.
    widened: list[str] = field(default_factory=list)
    # In the network, but not in the file.
    missing: list[str] = field(default_factory=list)
    # In the network and in the file, with different shapes.
    mismatched: list[str] = field(default_factory=list)
    # In the file, but not in the network.
    unexpected: list[str] = field(default_factory=list)

    def file_has_fusion(self) -> bool:
        """Return whether the file has any tensor of the fusion operator."""
        return any(_is_of_fusion(name) for name in self._names_in_file())

    def file_has_trunk(self) -> bool:
        """Return whether the file has any tensor of the trunk, the network without its fusion."""
        return any(not _is_of_fusion(name) for name in self._names_in_file())

    def _names_in_file(self) -> tuple[str, ...]:
        return (*self.matched, *self.widened, *self.mismatched, *self.unexpected)

    @property
    def loaded_share(self) -> float:
        """Return the share of the network's tensors that were loaded, 0 to 1.

        The trunk counts only if the file has any tensor of a trunk, and the fusion operator only if
        the file has any tensor of a fusion operator. So the weights of an RGB network may start a
        network with spikes. E.g. the network has 100 tensors of its trunk and 10 of its fusion
        operator, and the file has the trunk alone: 100 of 100 tensors count, so the share is 1.
        """
        file_has_fusion = self.file_has_fusion()
        file_has_trunk = self.file_has_trunk()
        missing_count = 0
        for name in self.missing:
            counts = file_has_fusion if _is_of_fusion(name) else file_has_trunk
            if counts:
                missing_count += 1
        loaded_count = len(self.matched) + len(self.widened)
        total = loaded_count + missing_count + len(self.mismatched)
        return loaded_count / max(total, 1)  # no division by 0 for a network without tensors

    def __str__(self) -> str:
        if self.file_has_fusion() and not self.file_has_trunk():
            part = "fusion"
        else:
            part = "network"
        lines = [
            f"{len(self.matched)} tensors matched, {len(self.widened)} widened "
            f"({self.loaded_share:.0%} of the {part})"
        ]
        # The first names of each kind are enough to see what is wrong.
        for kind in ("widened", "missing", "mismatched", "unexpected"):
            names = getattr(self, kind)
            if names:
                shown = ", ".join(names[:SHOWN_NAMES])
                unnamed = len(names) - SHOWN_NAMES
                more = f", and {unnamed} more" if unnamed > 0 else ""
                lines.append(f"  {kind} ({len(names)}): {shown}{more}")
        return "\n".join(lines)


def _is_of_fusion(name: str) -> bool:
    """Return whether a tensor belongs to the fusion operator, e.g. "fusion.gate.weight"."""
    return name.startswith("fusion.")


def load_weights(
    net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False
) -> LoadReport:
    """Load `weights` into `net` by name, in place. Returns what happened to each tensor.

    If conv_first of the network has more input channels than in the file, the weights of the
    further channels are zero. So the network at first ignores them.

    where: the source of the weights, for the error.
    strict: whether all names and shapes must match. Otherwise 90 % of the network's tensors must
        match (`LEAST_MATCHED`).

    Raises CheckpointError if the weights do not fit. Then the network is unchanged: callers rely on
    this.
    """
    report, fitting = compare_weights(net, weights, where, strict)
    of_network = net.state_dict()
    for name in fitting:
        # These tables follow from the window, and networks share them. So the attention skips a
        # table of the file when it loads (models/vrt/block.py). The table must be equal.
        if name.endswith(".relative_position_index"):
            refuse_other_index(fitting[name], of_network[name], name, where)
    net.load_state_dict(fitting, strict=False)  # compare_weights has checked the names
    return report


def compare_weights(
    net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False
) -> tuple[LoadReport, dict[str, Tensor]]:
    """Return what `load_weights` would report, and the tensors that it would load.

    net: the network, which may be on the device "meta". The other arguments are those of
        `load_weights`.

    Raises CheckpointError if the weights do not fit.
    """
    of_network = net.state_dict()
    report = LoadReport(
        missing=[name for name in of_network if name not in weights],
        unexpected=[name for name in weights if name not in of_network],
    )
    fitting: dict[str, Tensor] = {}
    in_both = of_network.keys() & weights.keys()
    for name in sorted(in_both):
        in_file = weights[name]
        in_network = of_network[name]
        if in_file.shape == in_network.shape:
            fitting[name] = in_file
            report.matched.append(name)
            continue
        # The first layer may get zeros for further input channels, e.g. for spikes.
        wide = None
        if name == "conv_first.weight":
            wide = widen_first(in_file, in_network, net)  # None: the shapes differ elsewhere, too
        file_shape = tuple(in_file.shape)
        network_shape = tuple(in_network.shape)
        if wide is not None:
            fitting[name] = wide
            report.widened.append(f"{name} {file_shape} -> {network_shape}")
        else:
            report.mismatched.append(f"{name} {file_shape}, network {network_shape}")

    # With `strict` nothing may differ. Otherwise a small share of the tensors may differ.
    differences = report.missing + report.mismatched + report.unexpected + report.widened
    has_forbidden_difference = strict and len(differences) > 0
    if report.loaded_share >= LEAST_MATCHED and not has_forbidden_difference:
        return report, fitting
    if strict:
        expected = "every tensor (strict)"
    else:
        expected = f"at least {LEAST_MATCHED:.0%} of the network's tensors"
    raise CheckpointError(
        what=f"the weights do not fit the network: {report}",
        where=where,
        expected=expected,
        do="choose weights of the same depths, dims and window, or adapt netG to them",
    )


def widen_first(in_file: Tensor, in_network: Tensor, net: nn.Module) -> Tensor | None:
    """Return the weight of conv_first, (E, inputs, 1, 3, 3), with zeros for new input channels.

    So a network with spikes starts with the weights of a network for RGB. The new channels have no
    effect at first.

    The input consists of groups of in_chans channels, then the noise map if there is one. With
    alignment there are nine groups: the frame, then four corners of each of two neighbours (see
    flow.aligned_input). In each group the channels of the file come first. E.g. RGB in the file,
    RGB and two spike channels in the network: R G B 0 0, nine times.

    in_file: the weight in the file. in_network: the weight in the network, of which only the shape
        is used.

    Returns None if the shapes differ in another axis, or if the network has no further inputs.
    """
    has_other_outputs = in_file.shape[0] != in_network.shape[0]
    has_other_kernel = in_file.shape[2:] != in_network.shape[2:]
    if has_other_outputs or has_other_kernel:
        return None
    # A network of a user may have neither of these attributes. `pa_frames` above 0 means alignment:
    # the frame and 2 neighbours x 4 corners are 9 groups.
    groups = 9 if getattr(net, "pa_frames", 0) else 1
    noise_channels = int(getattr(net, "nonblind", False))  # 0 or 1
    file_inputs = in_file.shape[1] - noise_channels
    network_inputs = in_network.shape[1] - noise_channels
    if file_inputs % groups != 0 or network_inputs % groups != 0:
        return None
    has_more_inputs = 0 < file_inputs < network_inputs
    if not has_more_inputs:
        return None

    file_width = file_inputs // groups  # channels of a group in the file, e.g. 3
    network_width = network_inputs // groups  # channels of a group in the network, e.g. 5
    wide = in_file.new_zeros(in_network.shape)
    for group in range(groups):
        # The first channel of the group in the file, and in the network.
        source = group * file_width
        target = group * network_width
        wide[:, target : target + file_width] = in_file[:, source : source + file_width]
    if noise_channels:  # the noise map is the last channel
        wide[:, -1] = in_file[:, -1]
    return wide


def load_pretrained(
    net: nn.Module, path: str | None, strict: bool, which: str = "netG"
) -> LoadReport | None:
    """Load the weights at `path` into `net`, and log the report. Returns None without a path.

    which: "netG", or "netE" for the running average of the weights. The path comes from the option
    path.pretrained_<which>. If a file has normal and averaged weights, netE takes the averaged
    weights.
    """
    if not path:
        return None
    # A file may hold the weights twice: the normal weights under the key "params", and their
    # running average under the key "ema_state_dict".
    container = "params" if which == "netG" else "ema_state_dict"
    path = str(file_of(path))  # a path, also for the name of published weights such as "vrt/006"
    # The error for a missing file advises: "correct path.pretrained_netG, or set it to null".
    key = f"path.pretrained_{which}, or set it to null"
    weights = read_weights(path, prefer=container, key=key)
    report = load_weights(net, weights, path, strict)
    logger.info("Pretrained %s %s: %s", which, path, report)
    return report


# ---- A file and its network ------------------------------------------------------------------
#
# What must stay: options from a weights file are checked before a network is built of them
# (test_options_of_a_larger_network_than_the_weights_are_refused_unbuilt). Otherwise a small file
# could ask for a network that fills the memory.


@dataclass(frozen=True)
class SavedNetwork:
    """A weights file and the network that its tensors belong to.

    path: the weights file.
    weights: the tensors of the file by name.
    netG: options of the network, with the keys of the section netG of an option file.
    scale: size of the output / size of the input.
    spike_channels: number of spike channels per frame.
    spike: options of the spike representation, or None for RGB only.
    spike_data: properties of the training spikes, or None if they are not known. E.g. the rate
    (spikes per plane at full light), the light ("linear" or "display") and the center (the plane of
    the sharp frame). `ClipDataset.spike_data` makes them.
    known_from: where the options come from, in words. FROM_FILE means that they are not trusted.
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
        """Return what the network requires of its input."""
        with torch.device("meta"):  # without memory for the weights
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
        # Options that do not come from the weights file are trusted. An error in them is an
        # OptionError about the user's option file.
        if self.known_from != FROM_FILE:
            return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)
        # From here, the options come from a file that anybody may have made. `refuse_larger` knows
        # only the options of our two networks.
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
        # A tensor that repeats one number is small in the file, and may be huge in the network.
        _refuse_repeated_numbers(self.weights, self.path)
        # Compare on the device "meta", where a network takes no memory, however large it is. This
        # call is made for its errors alone.
        with torch.device("meta"):
            compare_weights(self.network(), self.weights, str(self.path), strict=True)
        # Only a network that fits the tensors of the file is built with memory.
        net = self.network()
        load_weights(net, self.weights, str(self.path), strict=True)
        return net.eval().requires_grad_(False)


def read_saved(path: str | Path, network: dict[str, Any] | None = None) -> SavedNetwork:
    """Return the weights in a file, and their network. Averaged weights are preferred.

    network: what an option file says of its network (`Options.portable` in
    utils/options/models.py), or None without an option file.

    The first of these cases that holds says which network the tensors belong to:

        case                                                    network
        `network` is given                                      the network of the option file
        the file describes its network                          the network in the file
        a published network has tensors of the same names       this published network
            and shapes

    Raises CheckpointError if the file holds no weights, or the network is unknown, or the option
    file gives spike channels of another kind than the training had. Warns if other settings of the
    spike channels differ.
    """
    path = file_of(path)
    weights = read_weights(path, prefer="ema_state_dict", key="--weights")
    options = _options_in(path)
    if network is not None:
        return _with_option_file(path, weights, options or {}, network)
    if options is not None:
        return SavedNetwork(path, weights, **options, known_from=FROM_FILE)

    saved = _published_network(path, weights)
    if saved is None:
        raise CheckpointError(
            what=f"the file does not say what network its {len(weights)} tensors belong to",
            where=str(path),
            expected="weights saved by this project, or a published VRT network, 001 to 009",
            do="give the option file of the training: --opt FILE",
        )
    return saved


def _options_in(path: Path) -> dict[str, Any] | None:
    """Return what one of our files says of its network: a table with the keys of DESCRIPTION.

    Returns None if the file was not written by this program.
    """
    # mmap reads no tensors, only the tables. torch can map zip files alone.
    content = load_content(path, mmap=is_zip(path))
    # "network" describes the network, "options" is the option file. A full checkpoint has both
    # keys, a file of an earlier version has "options" alone.
    options = content.get("network", content.get("options"))
    if not isinstance(options, dict):
        return None
    # In an option file, the description of the spikes is in a dataset section.
    datasets = options.get("datasets")
    if isinstance(datasets, dict):
        section = datasets.get("train") or datasets.get("test")
        if not isinstance(section, dict):
            section = {}
        options["spike_channels"] = section.get("spike_channels") or 0
        options["spike"] = section.get("spike")
        options["spike_data"] = section.get("spike_data")
        options = {key: options[key] for key in DESCRIPTION if key in options}
    return options if _is_description(options) else None


def _is_description(options: dict[str, Any]) -> bool:
    """Return whether this program wrote the options in a weights file, and not another program.

    If so, the options have the keys of DESCRIPTION and values of the right types.
    """
    for key in options:
        if key not in DESCRIPTION:
            return False
    for key in DESCRIPTION:
        if key != "spike_data" and key not in options:  # older files lack "spike_data"
            return False
    for key in ("scale", "spike_channels"):
        if type(options[key]) is not int:  # isinstance would accept True and False
            return False
    for section in (options["spike"], options.get("spike_data")):
        if section is not None and not isinstance(section, dict):
            return False
    return isinstance(options["netG"], dict)


def _with_option_file(
    path: Path, weights: dict[str, Tensor], options: dict[str, Any], network: dict[str, Any]
) -> SavedNetwork:
    """Return weights with the network of an option file. Warns if spikes are read differently.

    options: what the weights file says of its network, or {}. network: Options.portable of the
    option file.

    Raises CheckpointError if the spike channels are of another kind than in the training.
    """
    # The weights file describes the data of its training. The option file may name other data, or
    # data that are not on this machine.
    spike_data = options.get("spike_data") or network["spike_data"]
    network = {**network, "spike_data": spike_data}
    saved = SavedNetwork(path, weights, **network, known_from="the option file")
    spike_of_training = options.get("spike")
    if spike_of_training is None or saved.spike is None:
        return saved  # there are no two descriptions of spikes to compare
    # `spec` builds the network without its numbers, so it is asked only where it is needed.
    if saved.spec.spike_channels == 0:
        return saved  # the network takes no spikes

    # If the number of spike channels is the same, channels of another kind fit the weights, and
    # the results would be wrong without an error. So refuse them here.
    first_difference = next(kind_differences(spike_of_training, saved.spike), None)
    if first_difference is not None:
        key, training_value, other_value = first_difference
        raise CheckpointError(
            what=f"the spike channels have {key} {other_value}, the weights were trained with "
            f"{training_value}",
            where=str(path),
            expected=f"the {key} of the training, {training_value}",
            do=f"take other weights, or set spike.{key} to {training_value}",
        )
    # Other differences in what the channels show may be meant, so they are a warning. The keys that
    # are not compared describe the camera and its files, which may be others than in the training.
    changes = []
    differences = changed_options.differences(spike_of_training, saved.spike)
    for key, (was, now) in differences.items():
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

        key           rule                                          least that the file must have
        depths        a block has at least one tensor               sum(depths) tensors
        embed_dims    a layer of n features has n x n weights       max(embed_dims)^2 numbers
        window_size   a window of n tokens has a table of n x n     prod(window_size)^2 numbers
        a number      no number in the options is larger than the   max(all options) numbers
                      number of weights

    where: the file, for the error.
    """
    tensor_count = len(weights)
    number_count = sum(tensor.numel() for tensor in weights.values())
    # Each option may have a wrong type, as the file is not trusted. So take all numbers in it, e.g.
    # [8, 8] -> 8, 8; "8" -> nothing.
    depths = list(_numbers_in(netG.get("depths")))
    embed_dims = list(_numbers_in(netG.get("embed_dims")))
    window_size = list(_numbers_in(netG.get("window_size")))
    all_options = list(_numbers_in([netG, spike_channels]))
    rules = (
        # key, least that the file must have, what the file has, and of what
        ("depths", sum(depths), tensor_count, "tensors"),
        ("embed_dims", max(embed_dims, default=0) ** 2, number_count, "numbers"),
        ("window_size", math.prod(window_size) ** 2, number_count, "numbers"),
        ("a number", max(all_options, default=0), number_count, "numbers"),
    )
    for key, least_count, count_in_file, things in rules:
        if least_count > count_in_file:
            raise CheckpointError(
                what=f"the options in it make a larger network than its weights: {key} asks for "
                f"at least {least_count:.3g} {things}, and the file has {count_in_file}",
                where=where,
                expected=f"options of a network of {tensor_count} tensors with {number_count} "
                "numbers",
                do="take the file as main_train_vrt.py wrote it, or give --opt FILE",
            )


def _numbers_in(value: Any) -> Iterator[float]:
    """Yield the absolute values of all numbers in `value`, e.g. {"a": [1, -2], "b": "x"} -> 1, 2.

    Numbers above LARGEST_NUMBER, and NaN, count as LARGEST_NUMBER.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _numbers_in(inner)
    elif isinstance(value, (int, float)):
        # LARGEST_NUMBER comes first, because min(a, NaN) is a, but min(NaN, a) is NaN.
        yield min(LARGEST_NUMBER, abs(value))


# ---- Recognising a published network ---------------------------------------------------------


def _published_network(path: Path, weights: dict[str, Tensor]) -> SavedNetwork | None:
    """Return the published network that has tensors of the same names and shapes, or None.

    Some published networks have the same shapes, and differ in their training data only. So a
    network is tried first if the name of the file begins with the number of the network.
    """
    number = path.name[:4]  # e.g. "006_"
    of_number = [name for name in sorted(RELEASED) if name[:4] == number]
    others = [name for name in sorted(RELEASED) if name[:4] != number]
    shapes = _shapes_of(weights)
    for name in of_number + others:
        if shapes == _shapes_of_released(name):
            return _network_of_release(name, path, weights)
    return None


def _network_of_release(name: str, path: Path, weights: dict[str, Tensor]) -> SavedNetwork:
    """Return `weights`, from the file `path`, as the weights of the published network `name`."""
    # RELEASED has some arguments. `resolve` adds the defaults of all others.
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
    """Return the state dict of a network on the device "meta": names and shapes alone."""
    with torch.device("meta"):
        return saved.network().state_dict()


def _shapes_of(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shape of each tensor, by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


@cache
def _shapes_of_released(name: str) -> dict[str, torch.Size]:
    """Return the shape of each tensor of the published network `name`, by name of the tensor.

    The network is built for this, which takes a fifth of a second, so the result is kept. Do not
    change it.
    """
    return _shapes_of(_tensors_of(_network_of_release(name, Path(name), weights={})))


def _most_bytes(name: str) -> int:
    """Return the largest size, in bytes, of a file with the published network `name`.

    The right file must pass, so 10 % and 5 MB are added to the bytes of the tensors: a file also
    has the names of the tensors. A much larger file must not fill the disk.
    """
    network = _network_of_release(name, Path(name), weights={})
    tensors = _tensors_of(network)
    return int(1.1 * _bytes_of(tensors.values())) + 5_000_000


def _refuse_other_tensors(path: Path, name: str) -> None:
    """Raise CheckpointError if a file does not hold the tensors of the published network `name`."""
    weights = read_weights(path)
    released_shapes = _shapes_of_released(name)
    if _shapes_of(weights) != released_shapes:
        missing = [key for key in released_shapes if key not in weights]
        first_missing = ", ".join(missing[:3]) or "none"
        raise CheckpointError(
            what=f"what was downloaded is not {name}: {len(weights)} tensors, of which "
            f"{len(released_shapes) - len(missing)} have names of that network",
            where=str(path),
            expected=f"its {len(released_shapes)} tensors; missing: {first_missing}",
            do=f"look at the address; unset {released.MIRROR}, or get the file by hand",
        )
