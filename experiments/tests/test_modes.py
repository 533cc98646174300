"""The parts of the study of clients' modes."""

import jax.numpy as jnp
import numpy as np
import pytest

from partita import MeanFieldGaussian
from partita.models import NetworkClassifier
from partita_experiments import modes

MODEL = NetworkClassifier((3, 4, 2))
GENERATOR = np.random.default_rng(0)


def drawn():
    """A mean-field Gaussian over the parameters of a small network."""
    like = MODEL.template()
    mean = [{name: GENERATOR.normal(size=leaf.shape) for name, leaf in layer.items()} for layer in like]
    sd = [{name: GENERATOR.uniform(0.1, 0.3, leaf.shape) for name, leaf in layer.items()} for layer in like]
    return MeanFieldGaussian.from_mean_sd(tuple(mean), tuple(sd))


def test_units_that_changed_places_predict_the_same_and_are_found_again():
    q = drawn()
    moved = modes.rearranged(q, np.array([2, 0, 3, 1]))
    x = GENERATOR.normal(size=(5, 3))
    at_mean = [MODEL.outputs(one.mean, jnp.asarray(x)) for one in (q, moved)]
    np.testing.assert_allclose(*at_mean, rtol=1e-12)
    assert modes.distance([q, moved]) > 1
    again = modes.ordered(moved, q)
    assert modes.distance([q, again]) == 0


def test_members_that_differ_by_noise_are_one_sd_apart():
    """m_k ~ N(m, v): their differences have the variance v_k + v_l."""
    size = 20_000
    members = [MeanFieldGaussian.from_mean_sd(GENERATOR.normal(size=size) * 0.2, np.full(size, 0.2)) for _ in range(3)]
    assert modes.distance(members) == pytest.approx(1, abs=0.02)


def test_the_product_counts_the_prior_once():
    prior = MeanFieldGaussian.standard_normal(2)
    members = [MeanFieldGaussian.from_mean_sd(jnp.full(2, value), 0.5) for value in (1.0, 3.0)]
    whole = modes.product(members, prior)
    np.testing.assert_allclose(whole.precision, 4 + 4 - 1)
    np.testing.assert_allclose(whole.mean, (4 * 1 + 4 * 3) / 7)


def test_statements_compare_the_ways():
    ways = (modes.OWN, modes.SHARED, modes.ORDERED, modes.CONVEX)
    found = {
        way: modes.Found(*(np.full(3, value) for value in (apart, 0.5, committee, 0.1, 0.2)))
        for way, apart, committee in zip(ways, (3.0, 2.0, 1.5, 1.0), (2.0, 1.0, 0.4, 0.3), strict=True)
    }
    gaps = [float(gap[0]) for gap in modes.statements(found).values()]
    np.testing.assert_allclose(gaps, [2.0, 1.5, 0.2, 1.0, 1.0, 1.5, 1.6])
    text = modes.markdown(found)
    assert text.count("- confirmed") == 7
    assert f"| {modes.OWN} | 3.0000 ± 0.0000 |" in text


@pytest.mark.slow
def test_a_quick_run_has_all_ways():
    found = modes.study(seeds=1, steps=5, units=3)
    assert set(found) == {modes.OWN, modes.SHARED, modes.ORDERED, modes.CONVEX}
    assert all(np.isfinite(some).all() for some in found.values())
    np.testing.assert_allclose(found[modes.OWN].alone, found[modes.ORDERED].alone, rtol=0.2)
