"""Two coordinates for a plot: a plane stays as it is, odd inputs have an answer."""

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.evaluation import project_2d


def test_projection_keeps_distances_of_a_plane_and_its_sign():
    random = np.random.default_rng(3)
    flat = random.normal(size=(12, 2)) * [5, 1]
    turn = np.linalg.qr(random.normal(size=(4, 4)))[0][:, :2]
    lifted = flat @ turn.T + 7
    got = project_2d(lifted)
    wanted = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    assert np.allclose(np.linalg.norm(got[:, None] - got[None], axis=2), wanted)
    assert np.ptp(got[:, 0]) > np.ptp(got[:, 1])
    assert np.allclose(project_2d(lifted[::-1])[::-1], got)


def test_projection_of_odd_inputs():
    assert project_2d(np.zeros((0, 3))).shape == (0, 2)
    assert project_2d(np.array([[1.0, 2.0, 3.0]])).tolist() == [[0, 0]]
    assert project_2d(np.array([[1.0], [3.0]])).tolist() == [[-1, 0], [1, 0]]
    got = project_2d(np.array([[1.0, 0], [np.nan, 0], [-1, 0]]))
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()
    assert np.isfinite(project_2d(np.array([[1e300, 0], [-1e300, 1]]))).all()
    with pytest.raises(DataError):
        project_2d(np.zeros(3))
