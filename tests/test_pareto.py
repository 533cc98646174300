"""Pareto smoothing against ArviZ."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from partita.results.pareto import smoothed


@pytest.mark.parametrize("draws", [100, 1000, 4000])
def test_weights_and_shapes_are_those_of_arviz(draws):
    """For tails from none to one without a mean."""
    generator = np.random.default_rng(draws)
    heavy = np.array([0.05, 0.3, 0.7, 1.2])[:, None] * generator.exponential(size=(4, draws))
    light = generator.normal(size=(3, draws)) * np.array([0.01, 1.0, 3.0])[:, None]
    bounded = generator.uniform(size=(1, draws))
    ratios = np.concatenate([heavy, light, bounded]) + 300
    weights, shapes = smoothed(ratios)
    for place, ratio in enumerate(ratios):
        expected, shape = array_stats.psislw(-ratio)
        np.testing.assert_allclose(shapes[place], shape, rtol=1e-10)
        np.testing.assert_allclose(weights[place], expected, rtol=1e-9, atol=1e-9)


def test_equal_weights_have_a_tail_of_shape_zero():
    rounding = 1e-12 * np.random.default_rng(0).normal(size=(2, 500))
    weights, shapes = smoothed(7.0 + rounding)
    np.testing.assert_allclose(weights, -np.log(500), atol=1e-9)
    np.testing.assert_array_equal(shapes, 0)
