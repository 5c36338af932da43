"""Reading weights files and starting a network from them, with a report of what fitted."""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from utils.errors import CheckpointError

logger = logging.getLogger(__name__)

# Where the published files and ours keep the state dict; a file may also be one itself.
CONTAINERS = ("params_ema", "params", "model_state_dict", "state_dict")
# Below this share of matched tensors the file is most likely not the one that was meant.
LEAST_MATCHED = 0.9


@dataclass
class LoadReport:
    """What a weights file gave to a network; names of tensors."""

    matched: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Loaded share of the network's tensors, parts that only the spikes need left out."""
        wanted = [k for k in self.missing if not k.startswith("fusion.")]
        total = len(self.matched) + len(self.widened) + len(wanted) + len(self.mismatched)
        return (len(self.matched) + len(self.widened)) / max(total, 1)

    def __str__(self) -> str:
        lines = [f"{len(self.matched)} tensors matched, {len(self.widened)} widened ({self.share:.0%} of the network)"]
        for name in ("widened", "missing", "mismatched", "unexpected"):
            keys = getattr(self, name)
            if keys:
                more = f", and {len(keys) - 6} more" if len(keys) > 6 else ""
                lines.append(f"  {name} ({len(keys)}): {', '.join(keys[:6])}{more}")
        return "\n".join(lines)


def read_weights(path: str | Path, prefer: str = "params") -> dict[str, Tensor]:
    """The state dict in a weights file, on the CPU; bare, or under params, params_ema, model_state_dict.

    prefer: the entry to take where a file has several. Raises CheckpointError for a missing or foreign file.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            "no such weights file", str(path), "an existing file", "correct the path, or set it to null"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as e:
        raise CheckpointError(
            "not a weights file",
            str(path),
            "a file of torch.save that holds tensors only",
            "download or export it again",
        ) from e
    for name in (prefer, *CONTAINERS):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        found = f"a {type(content).__name__}" + (
            f" with {sorted(map(str, content))[:5]}" if isinstance(content, dict) else ""
        )
        raise CheckpointError(
            f"{found} instead of a state dict", str(path), f"tensors by name, bare or under {', '.join(CONTAINERS)}",
            "choose another file",
        )  # fmt: skip
    return {key.removeprefix("module."): value for key, value in content.items()}


def load_weights(net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False) -> LoadReport:
    """Put `weights` into `net`, by name; a conv_first that has gained input channels is widened.

    strict: every tensor must match, none may be left over. Otherwise 90 % must match.
    Raises CheckpointError; the network is then unchanged.
    """
    own = net.state_dict()
    report = LoadReport(missing=[k for k in own if k not in weights], unexpected=[k for k in weights if k not in own])
    fitting: dict[str, Tensor] = {}
    for key in own.keys() & weights.keys():
        given, wanted = weights[key], own[key]
        if given.shape == wanted.shape:
            fitting[key] = given
            report.matched.append(key)
        elif key == "conv_first.weight" and (wide := widen_first(given, wanted, net)) is not None:
            fitting[key] = wide
            report.widened.append(f"{key} {tuple(given.shape)} -> {tuple(wanted.shape)}")
        else:
            report.mismatched.append(f"{key} {tuple(given.shape)}, network {tuple(wanted.shape)}")
    _check(report, where, strict)
    net.load_state_dict(fitting, strict=False)
    return report


def widen_first(given: Tensor, wanted: Tensor, net: nn.Module) -> Tensor | None:
    """`given` (E, K, 1, 3, 3) with zero columns for the new input channels, or None where that is not the difference.

    The input is groups of in_chans channels (the frame, then four corners of each neighbour), then the noise map:
    the RGB columns of each group stay at its head.
    """
    if given.shape[0] != wanted.shape[0] or given.shape[2:] != wanted.shape[2:]:
        return None
    groups = 9 if getattr(net, "pa_frames", 0) else 1
    noise = int(getattr(net, "nonblind", False))
    had, have = (given.shape[1] - noise), (wanted.shape[1] - noise)
    if had % groups or have % groups or not 0 < had < have:
        return None
    wide = given.new_zeros(wanted.shape)
    for group in range(groups):
        old, new = group * had // groups, group * have // groups
        wide[:, new : new + had // groups] = given[:, old : old + had // groups]
    if noise:
        wide[:, -1] = given[:, -1]
    return wide


def load_pretrained(net: nn.Module, path: str | None, strict: bool, which: str = "netG") -> LoadReport | None:
    """Start `net` from the weights at `path` (path.pretrained_<which>), where there are any; the log says what fitted.

    Of a file with averaged weights, netE takes these.
    """
    if not path:
        return None
    weights = read_weights(path, prefer="params" if which == "netG" else "ema_state_dict")
    report = load_weights(net, weights, str(path), strict)
    logger.info("Pretrained %s %s: %s", which, path, report)
    return report


def _check(report: LoadReport, where: str, strict: bool) -> None:
    faults = report.missing + report.mismatched + report.unexpected + report.widened
    if (strict and faults) or report.share < LEAST_MATCHED:
        raise CheckpointError(
            f"the weights do not fit the network: {report}", where,
            "every tensor (strict)" if strict else f"at least {LEAST_MATCHED:.0%} of the network's tensors",
            "choose weights of the same depths, dims and window, or adapt netG to them",
        )  # fmt: skip
