"""One rank of tests/parts/models/test_gradients.py: trains some steps on fixed batches in float64.

gradient_worker.py OPTIONS OUT PER_RANK PARTS STEPS

    OPTIONS     an option file
    OUT         the file of the results
    PER_RANK    number of samples of a micro-batch on each rank
    PARTS       number of micro-batches of a step (accumulation steps)
    STEPS       number of training steps

Rank 0 writes to the file OUT:
    gradients           parameter -> its gradient in the first step
    weights             parameter -> its value after the last step
    same_on_all_ranks   whether all ranks have these weights
"""

import sys

import torch
from torch import Tensor

from main_train_vrt import read_options
from models.ddp import unwrap_ddp
from models.model_vrt import ModelVRT
from utils import utils_dist
from utils.dist import process
from utils.dist.state import RUN

OPTIONS = sys.argv[1]
OUT = sys.argv[2]
PER_RANK = int(sys.argv[3])
PARTS = int(sys.argv[4])
STEPS = int(sys.argv[5])

# Shapes of the tensors of a step: 4 samples, 2 frames, channels, height, width. No step takes more
# than 4 samples.
SHAPES = {"lq": (4, 2, 3, 32, 32), "spike": (4, 2, 2, 32, 32), "gt": (4, 2, 3, 32, 32)}


def set_weights(net: torch.nn.Module) -> None:
    """Give each parameter fixed values.

    The last layer begins with zeros, so most gradients would be zero in the first step. With these
    values the gradient of every parameter is checked.
    """
    generator = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = 0.05 * noise


def samples_of(step: int) -> dict[str, Tensor]:
    """Return the samples of a step. They do not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(step)
    samples = {}
    for name, shape in SHAPES.items():
        samples[name] = torch.rand(shape, generator=generator, dtype=torch.float64)
    return samples


def micro_batches(step: int) -> list[dict[str, object]]:
    """Return the micro-batches of this rank in a step.

    The samples are divided as the sampler of a training divides them: a rank takes the samples
    rank, rank + world size, ... E.g. rank 1 of 2 takes the samples 1 and 3. With PER_RANK 1 and
    PARTS 2, its first micro-batch has sample 1, and its second micro-batch has sample 3.
    """
    samples = samples_of(step)
    world_size = RUN.launch.world_size
    own = range(RUN.launch.rank, PER_RANK * PARTS * world_size, world_size)
    batches = []
    for part in range(PARTS):
        rows = list(own[part * PER_RANK : (part + 1) * PER_RANK])
        batch: dict[str, object] = {name: values[rows] for name, values in samples.items()}
        batch["key"] = [str(row) for row in rows]
        batches.append(batch)
    return batches


def main() -> None:
    """Train, and let rank 0 write the results. Every rank must run this: it has collectives."""
    with utils_dist.ranks(log=False):
        opt = read_options(["--opt", OPTIONS])
        utils_dist.init_dist()
        model = ModelVRT(opt)
        model.netG.double()
        set_weights(model.netG)
        model.init_train()

        gradients = {}
        for step in range(1, STEPS + 1):
            model.optimize_parameters(step, micro_batches(step))
            if step == 1:
                for name, parameter in unwrap_ddp(model.netG).named_parameters():
                    if parameter.grad is not None:
                        gradients[name] = parameter.grad.clone()

        weights = {}
        for name, parameter in unwrap_ddp(model.netG).named_parameters():
            weights[name] = parameter.detach().clone()
        own_sums = {name: float(value.sum()) for name, value in weights.items()}
        sums_of_ranks = utils_dist.gather_objects(own_sums)
        if RUN.launch.rank == 0:
            is_same = all(sums == own_sums for sums in sums_of_ranks)
            report = {"gradients": gradients, "weights": weights, "same_on_all_ranks": is_same}
            torch.save(report, OUT)


# A test runs this file as a program, perhaps in a fork of a process that has imported torch.
if __name__ == "__main__":
    main()
    # sys.exit would run Python's own shutdown, in which a thread of torch may abort the process.
    process.end(0)
