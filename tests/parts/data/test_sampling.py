"""data/motion/sampling.py: the adjoint of sums of samples of a picture.

torch's gradient of `grid_sample` is the same adjoint, computed in another way.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from data.motion.sampling import (
    AdjointOfSums,
    corners_of,
    normalised,
    sorted_samples,
    sparse_matrix,
)

ROOT = Path(__file__).parents[3]
# Number of samples of a picture.
COUNT = 200
# (H, W) of pictures, and by how many pixels the samples may leave them.
PICTURES = {
    "within": ((7, 9), 0.0),
    "beyond the edges": ((7, 9), 20.0),
    "one row": ((1, 9), 2.0),
    "one column": ((7, 1), 2.0),
    "one pixel": ((1, 1), 2.0),
}


@pytest.fixture(params=list(PICTURES))
def samples(request):
    """Give the size of a picture, and random positions (COUNT, 2) of samples."""
    size, beyond = PICTURES[request.param]
    torch.manual_seed(0)
    height, width = size
    last = torch.tensor([width - 1, height - 1])
    positions = torch.rand(COUNT, 2) * (last + 2 * beyond) - beyond
    # Some samples lie exactly on pixels, the last row and column among them.
    positions[:20] = positions[:20].round()
    positions[0] = last
    return size, positions


def sampled(picture: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the samples (C, N) of a picture (C, H, W) by grid_sample."""
    height, width = picture.shape[1:]
    grid = normalised(positions[None], (height, width))
    return F.grid_sample(picture[None], grid, padding_mode="border", align_corners=True)[0, :, 0]


def test_the_four_weighted_pixels_are_the_sample(samples):
    size, positions = samples
    picture = torch.rand(1, *size)

    corners = corners_of(positions, size)

    found = torch.zeros(COUNT)
    for offset, weights in zip(corners.offsets, corners.weights, strict=True):
        counts = weights > 0
        pixels = corners.corner[counts] + offset
        found[counts] += weights[counts] * picture.flatten()[pixels]
    assert torch.allclose(found, sampled(picture, positions)[0], atol=1e-5)
    assert torch.allclose(corners.weights.sum(0), torch.ones(COUNT))


@pytest.mark.parametrize("each", [1, 5], ids=["single samples", "sums of five"])
@pytest.mark.parametrize("has_factors", [False, True], ids=["plain", "with factors"])
def test_the_adjoint_is_the_gradient_of_the_sums(samples, each, has_factors):
    size, positions = samples
    factors = torch.rand(COUNT) if has_factors else torch.ones(COUNT)
    outputs = COUNT // each
    in_order = sorted_samples(positions, size)
    output_of = (in_order.numbers // each).int()
    sorted_factors = factors[in_order.numbers] if has_factors else None

    adjoint = AdjointOfSums(in_order, outputs, output_of, sorted_factors)

    picture = torch.zeros(2, *size, requires_grad=True)
    sums = (factors * sampled(picture, positions)).view(2, outputs, each).sum(-1)
    y = torch.rand(outputs, 2)
    [gradient] = torch.autograd.grad(sums, picture, y.T)
    assert torch.allclose(adjoint(y), gradient.flatten(1).T, rtol=1e-4, atol=1e-4)
    # A single column gives the same as a vector.
    assert torch.allclose(adjoint(y[:, 0].contiguous()), adjoint(y)[:, 0], atol=1e-5)


def test_entries_of_a_sparse_matrix_at_the_same_place_are_added():
    rows = torch.tensor([1, 0, 1, 2])
    columns = torch.tensor([2, 0, 2, 1])
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])

    matrix = sparse_matrix(rows, columns, values, (4, 3))

    expected = torch.tensor([[2.0, 0, 0], [0, 0, 4], [0, 4, 0], [0, 0, 0]])
    assert torch.equal(matrix.to_dense(), expected)


def test_a_sparse_matrix_is_made_without_a_warning():
    # torch warns once in a process, so this needs a process of its own.
    program = (
        "import torch; from data.motion.sampling import sparse_matrix; "
        "sparse_matrix(torch.tensor([0]), torch.tensor([0]), torch.ones(1), (1, 1))"
    )

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)

    assert run.returncode == 0
    assert run.stderr == ""
