"""data/motion/joint/sampling.py, adjoint_of_samples.py, sparse.py: samples, and the map back.

A sample is the value of a picture at a position between its pixels. The adjoint is the map back,
from values of samples to the picture. The gradient that torch has for `grid_sample` is the same
map, computed in another way. So the tests compare the adjoint with this gradient.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from data.motion.joint.adjoint_of_samples import AdjointOfSums, sort_samples
from data.motion.joint.sampling import corners_of, grid_positions, weights_of
from data.motion.joint.sparse import sparse_matrix
from tests.dist.launching import run_ranks

ROOT = Path(__file__).parents[4]
# Number of samples of a picture.
COUNT = 200


class Picture(NamedTuple):
    """A picture whose samples are taken."""

    size: tuple[int, int]  # (H, W)
    beyond: float  # by how many pixels the samples may leave the picture


PICTURES = {
    "within": Picture(size=(7, 9), beyond=0.0),
    "beyond the edges": Picture(size=(7, 9), beyond=20.0),
    "one row": Picture(size=(1, 9), beyond=2.0),
    "one column": Picture(size=(7, 1), beyond=2.0),
    "one pixel": Picture(size=(1, 1), beyond=2.0),
}


@pytest.fixture(params=list(PICTURES))
def samples(request):
    """Give the size of a picture, and random positions (COUNT, 2) of samples."""
    size, beyond = PICTURES[request.param]
    torch.manual_seed(0)
    height, width = size
    last_pixel = torch.tensor([width - 1, height - 1])  # x and y
    # From `beyond` pixels before the first pixel to `beyond` pixels behind the last pixel.
    positions = torch.rand(COUNT, 2) * (last_pixel + 2 * beyond) - beyond
    # Some samples lie exactly on pixels, e.g. in the last row and column.
    positions[:20] = positions[:20].round()
    positions[0] = last_pixel
    return size, positions


def sample_picture(picture: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the samples (C, N) of a picture (C, H, W) by grid_sample."""
    height, width = picture.shape[1:]
    grid = grid_positions(positions[None], (height, width))  # (1, 1, N, 2): one row of positions
    samples = F.grid_sample(picture[None], grid, padding_mode="border", align_corners=True)
    return samples[0, :, 0]


def test_the_four_weighted_pixels_are_the_sample(samples):
    size, positions = samples
    picture = torch.rand(1, *size)

    corners = corners_of(positions, size)
    weights_of_pixels = weights_of(corners.right, corners.below)

    # Compute the sum of the four pixels times their weights. `corner` is the number of the upper
    # left pixel of each sample. The number of each of the four pixels is `corner` + offset.
    found = torch.zeros(COUNT)
    for offset, weights in zip(corners.offsets, weights_of_pixels, strict=True):
        counts = weights > 0  # a pixel of weight 0 may lie beyond the picture
        pixels = corners.corner[counts] + offset
        found[counts] += weights[counts] * picture.flatten()[pixels]
    assert torch.allclose(found, sample_picture(picture, positions)[0], atol=1e-5)
    assert torch.allclose(weights_of_pixels.sum(0), torch.ones(COUNT))


@pytest.mark.parametrize("in_sum", [1, 5], ids=["single samples", "sums of five"])
@pytest.mark.parametrize("has_factors", [False, True], ids=["plain", "with factors"])
def test_the_adjoint_is_the_gradient_of_the_sums(samples, in_sum, has_factors):
    size, positions = samples
    factors = torch.rand(COUNT) if has_factors else torch.ones(COUNT)
    outputs = COUNT // in_sum

    # An output is the sum of `in_sum` samples that follow one another.
    sorted_samples = sort_samples(positions, size)
    adjoint = AdjointOfSums(
        sorted_samples,
        output_count=outputs,
        output_of=(sorted_samples.order // in_sum).int(),
        factors=factors[sorted_samples.order] if has_factors else None,
    )

    # Compute the same sums with torch, of a picture of two channels. Sums are linear, so their
    # gradient is the same for any picture.
    picture = torch.zeros(2, *size, requires_grad=True)
    sums = (factors * sample_picture(picture, positions)).view(2, outputs, in_sum).sum(-1)
    y = torch.rand(outputs, 2)
    [gradient] = torch.autograd.grad(sums, picture, grad_outputs=y.T)  # (2, H, W)
    # Only the rounding of float32 may differ, because the sums are computed in another order.
    assert torch.allclose(adjoint(y), gradient.flatten(1).T, rtol=1e-4, atol=1e-4)


def test_a_vector_has_the_adjoint_of_a_single_column(samples):
    size, positions = samples
    sorted_samples = sort_samples(positions, size)
    adjoint = AdjointOfSums(
        sorted_samples, output_count=COUNT, output_of=sorted_samples.order.int()
    )
    columns = torch.rand(COUNT, 2)

    of_vector = adjoint(columns[:, 0].contiguous())

    assert torch.allclose(of_vector, adjoint(columns)[:, 0], atol=1e-5)


def test_entries_of_a_sparse_matrix_at_the_same_place_are_added():
    # Two of the four entries, 1 and 3, are in row 1 and column 2.
    rows = torch.tensor([1, 0, 1, 2])
    columns = torch.tensor([2, 0, 2, 1])
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])

    matrix = sparse_matrix(rows, columns, values, (4, 3))

    expected = torch.tensor([[2.0, 0, 0], [0, 0, 1 + 3], [0, 4, 0], [0, 0, 0]])
    assert torch.equal(matrix.to_dense(), expected)


def test_a_sparse_matrix_is_made_without_a_warning(tmp_path):
    # torch warns only once in a process. So the matrix is made in a new process.
    program = tmp_path / "program.py"
    program.write_text(
        "import torch; from data.motion.joint.sparse import sparse_matrix; "
        "sparse_matrix(torch.tensor([0]), torch.tensor([0]), torch.ones(1), (1, 1))"
    )

    run = run_ranks(1, program)

    assert run.exit_codes == [0]
    assert run.stderr == [""]
