"""One rank of tests/parts/models/test_gradients.py: trains some steps on fixed batches in float64.

gradient_worker.py OPTIONS OUT PER_RANK PARTS STEPS

OPTIONS: an option file. PER_RANK: samples of a micro-batch on each rank. PARTS: micro-batches of a
step (accumulation steps). STEPS: steps of training.

Rank 0 writes to the file OUT:
    gradients           parameter -> its gradient in the first step
    weights             parameter -> its value after the last step
    same_on_all_ranks   whether all ranks have these weights
"""

import sys

import torch

from main_train_vrt import read_options
from models.model_vrt import ModelVRT, unwrap_ddp
from utils import utils_dist
from utils.dist import process
from utils.dist.state import RUN

options, out = sys.argv[1:3]
per_rank, parts, steps = map(int, sys.argv[3:])

with utils_dist.ranks(log=False):
    opt = read_options(["--opt", options])
    launch = RUN.launch
    utils_dist.init_dist()
    model = ModelVRT(opt)
    model.netG.double()
    # The tail starts at zero, where most gradients vanish: fixed values let every parameter speak.
    draw = torch.Generator().manual_seed(1)
    for parameter in model.netG.parameters():
        parameter.data = 0.05 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    model.init_train()
    gradients = {}
    for step in range(1, steps + 1):
        # Samples 0 ... 3 of the step, shared out as the sampler does: rank, rank + world, ...
        draw = torch.Generator().manual_seed(step)
        sizes = {
            name: (4, 2, channels, 32, 32)
            for name, channels in (("lq", 3), ("spike", 2), ("gt", 3))
        }
        clips = {
            name: torch.rand(size, generator=draw, dtype=torch.float64)
            for name, size in sizes.items()
        }
        mine = range(launch.rank, per_rank * parts * launch.world_size, launch.world_size)
        batches = [mine[part * per_rank : (part + 1) * per_rank] for part in range(parts)]
        feed = [
            {k: v[list(rows)] for k, v in clips.items()} | {"key": [str(r) for r in rows]}
            for rows in batches
        ]
        model.optimize_parameters(step, feed)
        if step == 1:
            named = unwrap_ddp(model.netG).named_parameters()
            gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}
    weights = {name: p.detach().clone() for name, p in unwrap_ddp(model.netG).named_parameters()}
    found = utils_dist.gather_objects({name: float(value.sum()) for name, value in weights.items()})
    if launch.rank == 0:
        same = all(f == found[0] for f in found)
        torch.save({"gradients": gradients, "weights": weights, "same_on_all_ranks": same}, out)
process.end(0)
