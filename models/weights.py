"""Read weights files and load them into a network, with a report of what matched."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from utils.errors import CheckpointError, address_of
from utils.run import checkpoint

logger = logging.getLogger(__name__)

# Keys under which published files and ours hold the state dict. A file may also be a state dict itself.
CONTAINERS = ("params_ema", "params", "model_state_dict", "state_dict")
# If fewer tensors match, the file most likely belongs to another network.
MIN_MATCHED = 0.9


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
        """Whether the weights have tensors of the fusion (True), of the transformer (False), or of both."""
        return {k.startswith("fusion.") for k in (*self.matched, *self.widened, *self.mismatched, *self.unexpected)}

    @property
    def share(self) -> float:
        """Share of the network's tensors, of those parts of it that the weights have, that were loaded."""
        wanted = [k for k in self.missing if k.startswith("fusion.") in self.parts]
        total = len(self.matched) + len(self.widened) + len(wanted) + len(self.mismatched)
        return (len(self.matched) + len(self.widened)) / max(total, 1)

    def __str__(self) -> str:
        part = "fusion" if self.parts == {True} else "network"
        lines = [f"{len(self.matched)} tensors matched, {len(self.widened)} widened ({self.share:.0%} of the {part})"]
        for name in ("widened", "missing", "mismatched", "unexpected"):
            keys = getattr(self, name)
            if keys:
                more = f", and {len(keys) - 6} more" if len(keys) > 6 else ""
                lines.append(f"  {name} ({len(keys)}): {', '.join(keys[:6])}{more}")
        return "\n".join(lines)


def read_weights(path: str | Path, prefer: str = "params", key: str = "the path") -> dict[str, Tensor]:
    """The state dict in a weights file, on the CPU; the file holds it directly or under one of CONTAINERS.

    prefer: the key to take if the file has several. key: what names the file, for the error.
    Raises CheckpointError if the file is missing or holds no weights.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError("no such weights file", str(path), "an existing file", f"correct {key}{address_of(path)}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except checkpoint.UNREADABLE as e:
        expected = "a file written by torch.save that holds tensors only"
        raise CheckpointError("not a weights file", str(path), expected, "download or export it again") from e
    for name in (prefer, *CONTAINERS):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        keys = f" with the keys {sorted(map(str, content))[:5]}" if isinstance(content, dict) else ""
        what = f"a {type(content).__name__}{keys} instead of a state dict"
        expected = f"tensors by name, directly or under {', '.join(CONTAINERS)}"
        raise CheckpointError(what, str(path), expected, "choose another file")
    return {key.removeprefix("module."): value for key, value in content.items()}


def load_weights(net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False) -> LoadReport:
    """Load `weights` into `net` by name; if conv_first has more input channels than its weight, the rest is zero.

    where: the source of the weights, for the error. strict: all names and shapes must match; otherwise 90 % of the
    network's tensors. Raises CheckpointError and leaves the network unchanged.
    """
    own = net.state_dict()
    report = LoadReport(missing=[k for k in own if k not in weights], unexpected=[k for k in weights if k not in own])
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
        expected = "every tensor (strict)" if strict else f"at least {MIN_MATCHED:.0%} of the network's tensors"
        do = "choose weights of the same depths, dims and window, or adapt netG to them"
        raise CheckpointError(f"the weights do not fit the network: {report}", where, expected, do)
    net.load_state_dict(fitting, strict=False)
    return report


def widen_first(given: Tensor, wanted: Tensor, net: nn.Module) -> Tensor | None:
    """`given` (E, K, 1, 3, 3) with zeros for the new input channels; None if the shapes differ in another way.

    The input consists of groups of in_chans channels (the frame, then four corners of each of two neighbours), then
    the noise map. In each group the given channels come first.
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


def load_pretrained(net: nn.Module, path: str | None, strict: bool, which: str = "netG") -> LoadReport | None:
    """Load the weights at `path` (option path.pretrained_<which>), if given, into `net`, and log the report.

    netE takes the averaged weights of a file that has both.
    """
    if not path:
        return None
    own = "params" if which == "netG" else "ema_state_dict"
    weights = read_weights(path, own, f"path.pretrained_{which}, or set it to null")
    report = load_weights(net, weights, str(path), strict)
    logger.info("Pretrained %s %s: %s", which, path, report)
    return report
