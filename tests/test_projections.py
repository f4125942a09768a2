"""Projections by hand: onto a ball, a box and the sphere, in NumPy and PyTorch alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.projections import Box, L2Ball, Projection, Unconstrained, UnitSphere


def test_projections() -> None:
    centres = np.array([[3.0, -4.0], [0.1, 0.2], [0.0, 0.0]])
    np.testing.assert_allclose(L2Ball(2.5)(centres), [[1.5, -2.0], [0.1, 0.2], [0.0, 0.0]])
    np.testing.assert_allclose(UnitSphere()(centres)[[0, 2]], [[0.6, -0.8], [0.0, 0.0]])
    far = np.array([[3e30, -4e30]], np.float32)
    np.testing.assert_allclose(L2Ball(1.0)(far), [[0.6, -0.8]], rtol=1e-6)
    np.testing.assert_allclose(Box(1.0)(centres), [[1.0, -1.0], [0.1, 0.2], [0.0, 0.0]])
    assert Unconstrained()(centres) is centres


@pytest.mark.parametrize("project", [Unconstrained(), L2Ball(2.5), Box(1.0), UnitSphere()])
def test_a_projection_is_a_value_changes_nothing_twice_and_knows_torch(project: Projection) -> None:
    centres = np.array([[3.0, -4.0], [0.1, 0.2], [0.0, 0.0], [-7.0, 1e-9]])
    once = project(centres)
    np.testing.assert_allclose(project(once), once, rtol=1e-12)
    theirs = project(torch.from_numpy(centres))
    assert isinstance(theirs, torch.Tensor)
    np.testing.assert_allclose(theirs.numpy(), once, rtol=1e-12)
    assert centres[0].tolist() == [3.0, -4.0]
    assert L2Ball(2.5) == L2Ball(2.5) != L2Ball(2.0)
