"""Muon moves matrices along orthogonal directions, and finds a minimum."""

import pytest
import torch

from rollenv.agents.tiny.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(8, 8), (4, 32), (32, 4)])
def test_singular_vectors_stay_and_values_come_near_one(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    found = orthogonal(matrices)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = left.mT @ found @ right.mT
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(values, torch.diag_embed(diagonal), atol=1e-3)
    assert (diagonal > 0.3).all()
    assert (diagonal < 1.3).all()


def test_a_least_squares_problem_is_solved():
    draw = torch.Generator().manual_seed(0)
    wanted, inputs = torch.randn(6, 4, generator=draw), torch.randn(64, 6, generator=draw)
    weight = torch.nn.Parameter(torch.zeros(6, 4))
    optimizer = Muon([weight], lr=0.2)
    for step in range(300):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 300)
        optimizer.zero_grad()
        (inputs @ (weight - wanted)).square().mean().backward()
        optimizer.step()
    assert (weight - wanted).abs().max() < 0.05
