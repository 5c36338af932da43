"""Bytes that the backward pass of the alignment holds besides what was saved: counted on fake tensors, and estimated.

    python -m tests.fake_align

Prints [[case, counted, estimated], ..] as JSON. The estimate is that of netG.checkpoint "auto".
"""

from __future__ import annotations

import itertools
import json
import sys

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from models.vrt.deform_align import DeformAlign
from tests import fake_gpu

# (frames, channels, height and width, deformable groups, sources): of network 006, of a batch, of two neighbours.
SHAPES = ((5, 96, 192, 16, 1), (40, 96, 96, 16, 1), (5, 120, 96, 12, 2))


def counted(shape: tuple[int, ...], amp: bool) -> tuple[int, int]:
    n, d, side, groups, sources = shape
    with fake_gpu.FAKE:
        with unset_fake_temporarily():
            module = DeformAlign(d, groups, sources, 10.0)
        fake_gpu.to_gpu(module)

        def made(channels: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(n, channels, side, side, dtype=dtype, device="cuda", requires_grad=True)

        with fake_gpu.hidden_device(), torch.autocast("cuda", torch.bfloat16, enabled=amp):
            images = [made(d, torch.bfloat16 if amp else torch.float32) for _ in range(1 + sources)]
            flows = [made(2, torch.float32) for _ in range(sources)]
            with fake_gpu.Counter() as counter:
                out = module(images[1:], images[0], flows)
                counter.peak = held = counter.now
                out.sum().backward()
            return counter.peak - held, module.transient(images[0])


if __name__ == "__main__":
    if reason := fake_gpu.needs_a_real_gpu():
        print(reason, file=sys.stderr)
        sys.exit(77)
    fake_gpu.stand_in()
    cases = itertools.product(SHAPES, (True, False))
    print(json.dumps([[case, *counted(*case)] for case in cases]))
