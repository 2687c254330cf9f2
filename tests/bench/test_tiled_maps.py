"""The arithmetic in tiles that errors of scans of maps are compared with is that of the recurrence, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.filter_accuracy import LENGTHS, POLES, Poles, Row, error_of, runs_of
from benchmarks.reference.tiled_maps import LANES, Arithmetic, tiled


@given(st.sampled_from(POLES), st.booleans(), st.sampled_from((1, 4, 16)), st.integers(0, 2**32 - 1))
def test_tiles_give_the_states_of_the_steps(poles: Poles, is_constant: bool, steps: int, seed: int) -> None:
    matrix = poles.matrix.astype(float)
    time = 3 * LANES * steps
    b = np.random.default_rng(seed).standard_normal((time, len(matrix)))
    state, states = np.zeros(len(matrix)), np.empty_like(b)
    for t in range(time):
        state = states[t] = matrix @ state + b[t]
    maps = matrix if is_constant else np.broadcast_to(matrix, (time, *matrix.shape))
    found = tiled(maps, b, Arithmetic(float, float, poles.form, steps))
    # Each step rounds a state, which powers of the map carry to all later steps; composed powers round their factors too.
    norms, power = [], np.eye(len(matrix))
    for _ in range(time):
        norms.append(float(np.linalg.norm(power, 2)))
        power = matrix @ power
    atol = 4 * np.finfo(float).eps * sum(norms) * max(norms) * float(np.abs(states).max())
    np.testing.assert_allclose(found, states, rtol=0, atol=atol)


@pytest.mark.parametrize("poles", POLES, ids=lambda poles: poles.name)
def test_what_is_exact_is_the_recurrence(poles: Poles) -> None:
    row = Row(poles, next(runs_of(poles)), LENGTHS[0])
    matrix, state, states = row.poles.matrix.astype(np.longdouble), np.zeros(len(row.poles.matrix), np.longdouble), []
    for b in row.b:
        state = matrix @ state + b
        states.append(state[row.poles.place])
    assert error_of(np.array(states), row.exact) < 1e-15
