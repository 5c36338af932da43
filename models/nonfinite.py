"""NaN or Inf in a training step: which rank and samples caused it, and a report file if it ends the run."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

from utils import utils_dist
from utils.dist import status
from utils.errors import DataError, NonFiniteError
from utils.files import write_whole

logger = logging.getLogger(__name__)


class NonFiniteSteps:
    """Counts consecutive skipped steps, and records their numbers and samples.

    limit: this many end the run (`train.max_nonfinite_steps`). folder: of the run, for the report file.
    """

    def __init__(self, limit: int, folder: Path) -> None:
        self.limit, self.folder = limit, folder
        self.in_a_row = 0
        self.records: list[dict[str, Any]] = []

    def passed(self) -> None:
        """Reset the count after a finite step."""
        if self.in_a_row:
            self.in_a_row = 0
            self.records.clear()
            status.tell(loss_is_finite=True)

    def skipped(self, step: int, loss: float, keys: list[str], grad_norm: float, lr: float, scale: float) -> None:
        """Record a step that all ranks skip, and log the ranks whose loss was not finite. Collective.

        loss, keys: loss and sample names of this rank. grad_norm: of the reduced gradient, the same on all ranks.
        scale: the loss scale in float16, else 1. Raises NonFiniteError on all ranks when the limit is reached.
        """
        ranks = [
            {"rank": rank, "loss": _plain(value), "finite": math.isfinite(value), "samples": samples}
            for rank, (value, samples) in enumerate(utils_dist.gather_objects((loss, keys)))
        ]
        if scale > 1 and all(r["finite"] for r in ranks):
            # Every float16 run starts like this: GradScaler lowers its scale until the gradients are finite.
            logger.info("iteration %d: gradients overflow float16, so the loss scale is lowered", step)
            return
        self.in_a_row += 1
        status.tell(loss_is_finite=math.isfinite(loss))
        nonfinite = [r for r in ranks if not r["finite"]]
        kind = "loss" if nonfinite else "gradient"
        names = "; ".join(f"rank {r['rank']}: {', '.join(r['samples'])}" for r in nonfinite or ranks)
        self.records.append(
            {"step": step, "what": kind, "grad_norm": _plain(grad_norm), "lr": lr, "scale": scale, "ranks": ranks}
        )
        logger.warning("iteration %d: %s is NaN or Inf, step skipped on all ranks (%s)", step, kind, names)
        if self.in_a_row < self.limit:
            return
        # The gather makes all ranks wait: a rank that exits early would kill rank 0 in the middle of the write.
        saved = utils_dist.gather_objects(self._write(step) if utils_dist.is_main_process() else "")[0]
        raise NonFiniteError(
            f"{kind} NaN or Inf in {self.limit} steps in a row", f"iteration {step}, {names}; {saved}",
            f"finite numbers, or fewer than {self.limit} skipped steps in a row (train.max_nonfinite_steps)",
            "lower train.G_optimizer_lr, set train.G_optimizer_clipgrad, use bfloat16, or check these samples",
        )  # fmt: skip

    def _write(self, step: int) -> str:
        """Write nonfinite_<step>.json to the folder of the run. Returns a sentence about it for the error message."""
        path = self.folder / f"nonfinite_{step}.json"
        try:
            write_whole(path, json.dumps({"steps": self.records}, indent=2, allow_nan=False).encode())
        except DataError as e:
            return f"the report could not be written to {path} ({e.what})"
        return f"report: {path}"


def _plain(value: float) -> float | str:
    """`value`, or "nan", "inf", "-inf": JSON has no such numbers."""
    return value if math.isfinite(value) else str(value)
