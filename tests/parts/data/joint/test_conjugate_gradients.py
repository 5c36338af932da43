"""data/motion/joint/conjugate_gradients.py: steps towards the solution of normal equations."""

import torch

from data.motion.joint.conjugate_gradients import conjugate_gradients


def test_conjugate_gradients_solve_the_normal_equations():
    # A random matrix takes the place of both cameras. The unknown d is a picture of 3 x 4 pixels
    # with one colour, so it has 12 values. The cameras record 40 values: the first camera records
    # 30, and the second 10.
    torch.manual_seed(0)
    a = torch.rand(40, 12)
    prior = 0.1 + torch.rand(3, 4)
    right = torch.rand(1, 3, 4)

    def linear(d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = a @ d.flatten()
        return values[:30], values[30:]

    def adjoint(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (a.T @ torch.cat((first, second))).view(1, 3, 4)

    # There are 12 unknowns, so 12 steps of conjugate gradients reach the solution with any divisor.
    # Only the rounding of float32 is left. So the limit below is 1e-3.
    divisor = 0.5 + torch.rand_like(right)
    d = conjugate_gradients(linear, adjoint, prior, right, divisor, steps=12)

    # Solve the normal equations directly: (A' A + prior) d = right.
    normal = a.T @ a + torch.diag(prior.flatten())
    expected = torch.linalg.solve(normal, right.flatten())
    assert torch.allclose(d.flatten(), expected, atol=1e-3)
