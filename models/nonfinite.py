"""NaN or Inf in a step: whose it was, and a file that tells of all of them when they end the run."""

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
    """Counts the steps in a row that were skipped, and remembers what they were made of.

    limit: as many end the run (`train.max_nonfinite_steps`). folder: takes the file about them.
    """

    def __init__(self, limit: int, folder: Path) -> None:
        self.limit, self.folder = limit, folder
        self.in_a_row = 0
        self.records: list[dict[str, Any]] = []

    def passed(self) -> None:
        """A step was finite."""
        if self.in_a_row:
            self.in_a_row = 0
            self.records.clear()
            status.tell(loss_is_finite=True)

    def skipped(self, step: int, loss: float, keys: list[str], grad_norm: float, lr: float, scale: float) -> None:
        """All ranks skip this step: name the one whose loss it was. Collective.

        loss, keys: of this rank; keys are those of its samples. grad_norm: of the reduced gradient, the same on all.
        scale: of the loss in float16, else 1. Raises NonFiniteError, on all ranks, where it is one too many.
        """
        ranks = [
            {"rank": rank, "loss": _plain(value), "finite": math.isfinite(value), "samples": samples}
            for rank, (value, samples) in enumerate(utils_dist.gather_objects((loss, keys)))
        ]
        if scale > 1 and all(r["finite"] for r in ranks):
            # How GradScaler finds its scale, at the start of every float16 run: nothing is wrong yet.
            logger.info("iteration %d: gradients overflow float16, the loss scale is lowered", step)
            return
        self.in_a_row += 1
        status.tell(loss_is_finite=math.isfinite(loss))
        guilty = [r for r in ranks if not r["finite"]]
        kind = "loss" if guilty else "gradient"
        names = "; ".join(f"rank {r['rank']}: {', '.join(r['samples'])}" for r in guilty or ranks)
        self.records.append(
            {"step": step, "what": kind, "grad_norm": _plain(grad_norm), "lr": lr, "scale": scale, "ranks": ranks}
        )
        logger.warning("iteration %d: %s is NaN or Inf, step skipped on all ranks (%s)", step, kind, names)
        if self.in_a_row < self.limit:
            return
        # A rank that exits here would end rank 0 before the file is written: hence the gather.
        told = utils_dist.gather_objects(self._write(step) if utils_dist.is_main_process() else "")[0]
        raise NonFiniteError(
            f"{kind} NaN or Inf in {self.limit} steps in a row", f"iteration {step}, {names}; {told}",
            "finite numbers; a few skipped steps are borne (train.max_nonfinite_steps)",
            "lower train.G_optimizer_lr, set train.G_optimizer_clipgrad, use bfloat16, look at these samples",
        )  # fmt: skip

    def _write(self, step: int) -> str:
        """nonfinite_<step>.json in the folder of the run; says where the numbers are."""
        path = self.folder / f"nonfinite_{step}.json"
        try:
            write_whole(path, json.dumps({"steps": self.records}, indent=2, allow_nan=False).encode())
        except DataError as e:
            return f"the numbers could not be kept in {path} ({e.what})"
        return f"all numbers are in {path}"


def _plain(value: float) -> float | str:
    """JSON has no NaN and no Inf: "nan", "inf", "-inf"."""
    return value if math.isfinite(value) else str(value)
