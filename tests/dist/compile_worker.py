"""One rank of tests/parts/models/test_gradients.py: the same steps of ModelVRT, plain and compiled,
on clips of two sizes.

compile_worker.py OPTIONS [eager]

OPTIONS: an option file. eager: torch.compile traces the graphs, but compiles no code of them. The
graphs are run operation by operation, because making code takes minutes.

Each rank prints one line of JSON:
    plain, compiled   the loss of each step
    gradient_error    relative difference of the gradients of the last step
    graphs            number of graphs after the plain steps, and after the compiled steps
"""

import json
import sys
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from main_train_vrt import PARTS
from models.ddp import unwrap_ddp
from models.model_vrt import ModelVRT
from tests.helpers.checked import not_none
from utils import utils_dist
from utils.dist import process
from utils.options.load import load_options

# Height and width of the clip of each step. torch.compile makes a graph for 32. For 48 it makes a
# second graph. This graph serves any size. So the second 32 must make no new graph.
SIDES = (32, 48, 32)
# The setting of torch._dynamo that replaces the backend of torch.compile in some graphs, e.g.
# ">=0:eager": the backend "eager" in all graphs from number 0 on.
DEBUGGING_AID = "debug_backend_override"


def train(*overrides: str) -> tuple[list[float], Tensor]:
    """Train a step with each size of SIDES. Return the losses, and the last gradients as a vector.

    overrides: "section.key=value", in place of values of the option file.
    """
    model = ModelVRT(load_options(sys.argv[1], overrides, PARTS))
    # conv_last begins with zeros, so no gradient would reach the blocks before it.
    network: Any = model.netG
    torch.nn.init.normal_(network.conv_last.weight, std=0.1)
    model.init_train()
    losses = []
    for step, side in enumerate(SIDES, 1):
        # Each rank has another clip in each step.
        generator = torch.Generator().manual_seed(10 * step + utils_dist.get_rank())
        lq = torch.rand(1, 2, 3, side, side, generator=generator)
        result = model.optimize_parameters(
            step, [{"lq": lq, "gt": lq.square(), "key": [str(step)]}]
        )
        losses.append(float(result.losses["loss"]))
    gradients = [not_none(p.grad).flatten() for p in unwrap_ddp(model.netG).parameters()]
    return losses, torch.cat(gradients)


def main() -> None:
    """Train plainly, then compiled, and print the line of this rank. Every rank must run this."""
    # Not all versions of torch have this setting. If it is missing, the graphs are compiled.
    if "eager" in sys.argv and hasattr(torch._dynamo.config, DEBUGGING_AID):
        setattr(torch._dynamo.config, DEBUGGING_AID, ">=0:eager")
    with utils_dist.ranks(log=False):
        utils_dist.init_dist(timeout_s=300)
        # The counters of torch.compile in this process. "unique_graphs" is the number of graphs
        # that were compiled up to now. This number is read below after each training.
        counters = torch._dynamo.utils.counters["stats"]

        plain_losses, expected = train()
        graphs_after_plain = counters["unique_graphs"]

        compiled_losses, found = train("train.compile=true")
        graphs_after_compiled = counters["unique_graphs"]

        report = {
            "plain": plain_losses,
            "compiled": compiled_losses,
            "gradient_error": float((found - expected).norm() / expected.norm()),
            "graphs": [graphs_after_plain, graphs_after_compiled],
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
    # sys.exit would run Python's own shutdown, in which a thread of torch may abort the process.
    process.end(0)
