"""One rank of tests/parts/models/test_gradients.py: the same steps of ModelVRT, plain and compiled,
on clips of two sizes.

compile_worker.py OPTIONS [eager]     prints losses, relative difference of the last gradients, and
how many graphs were made. eager: they are run as they stand, no code is made of them.
"""

import json
import sys

import torch
import torch._dynamo
from torch import Tensor

from main_train_vrt import PARTS
from models.model_vrt import ModelVRT, unwrap_ddp
from utils import utils_dist
from utils.dist import process
from utils.options.load import load_options

SIDES = (32, 48, 32)
DEBUGGING_AID = "debug_backend_override"


def train(*overrides: str) -> tuple[list[float], Tensor]:
    """Loss of each step, and the last gradient."""
    model = ModelVRT(load_options(sys.argv[1], overrides, PARTS))
    # Zero would leave nothing to the blocks
    torch.nn.init.normal_(model.netG.conv_last.weight, std=0.1)
    model.init_train()
    losses = []
    for step, side in enumerate(SIDES, 1):
        generator = torch.Generator().manual_seed(10 * step + utils_dist.get_rank())
        lq = torch.rand(1, 2, 3, side, side, generator=generator)
        result = model.optimize_parameters(
            step, [{"lq": lq, "gt": lq.square(), "key": [str(step)]}]
        )
        losses.append(float(result.losses["loss"]))
    return losses, torch.cat([p.grad.flatten() for p in unwrap_ddp(model.netG).parameters()])


def main() -> None:
    # Not in all versions of torch
    if "eager" in sys.argv and hasattr(torch._dynamo.config, DEBUGGING_AID):
        setattr(torch._dynamo.config, DEBUGGING_AID, ">=0:eager")
    with utils_dist.ranks(log=False):
        utils_dist.init_dist(300)
        graphs = torch._dynamo.utils.counters["stats"]
        (plain, expected), before = train(), graphs["unique_graphs"]
        compiled, found = train("train.compile=true")
        error = float((found - expected).norm() / expected.norm())
        made = [before, graphs["unique_graphs"]]
        print(
            json.dumps(
                {"plain": plain, "compiled": compiled, "gradient_error": error, "graphs": made}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
    process.end(0)
