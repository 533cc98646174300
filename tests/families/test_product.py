import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import FullGaussian, InputError, MeanFieldGaussian
from partita.checks import check_family
from partita.families import Gamma, Product

VECTOR = MeanFieldGaussian.from_mean_sd(jnp.array([0.3, -1.0]), jnp.array([0.5, 1.2]))
PAIR = FullGaussian.from_mean_covariance(jnp.array([1.0, 0.0]), jnp.array([[1.0, 0.4], [0.4, 0.6]]))
Q = Product(slope=VECTOR, level=PAIR)
OTHER = Product({"slope": MeanFieldGaussian.standard_normal(2, 1.5), "level": FullGaussian.standard_normal(2, 0.8)})
THETA = {"slope": jnp.array([0.1, -0.2]), "level": jnp.array([1.3, 0.4])}


def test_contract():
    check_family(Q, OTHER)


def test_density_entropy_and_kl_are_those_of_independent_components():
    # Sums of the same terms.
    np.testing.assert_allclose(Q.log_prob(THETA), VECTOR.log_prob(THETA["slope"]) + PAIR.log_prob(THETA["level"]))
    np.testing.assert_allclose(Q.entropy(), VECTOR.entropy() + PAIR.entropy())
    np.testing.assert_allclose(Q.kl(OTHER), VECTOR.kl(OTHER["slope"]) + PAIR.kl(OTHER["level"]))


def test_moments_and_intervals_are_named():
    for found, of in [(Q.moments(), lambda c: c.moments()), (Q.interval(0.8), lambda c: c.interval(0.8))]:
        for end in (0, 1):
            for name in ("slope", "level"):
                np.testing.assert_array_equal(found[end][name], of(Q[name])[end])


def test_one_improper_component_makes_it_improper():
    factor = Q / Product(slope=VECTOR**2, level=PAIR.one())
    assert not factor.is_proper()
    assert factor["level"].is_proper()
    assert "improper" in str(factor)


def test_components_are_drawn_independently():
    draws = Product(one=VECTOR, other=VECTOR).sample(jax.random.key(0), (4000,))
    between = np.corrcoef(draws["one"][:, 0], draws["other"][:, 0])[0, 1]
    assert abs(between) < 5 / np.sqrt(4000)  # five standard errors


@pytest.mark.parametrize("other", [Product(slope=VECTOR), Product(slope=VECTOR, height=PAIR), VECTOR])
def test_products_of_other_components_cannot_be_combined(other):
    with pytest.raises(InputError, match="cannot be combined"):
        Q * other


def test_only_families_with_a_scale_can_be_stretched():
    q = Product(slope=VECTOR, noise=Gamma.from_shape_rate(2.0, 3.0))
    found = q.stretched({"slope": jnp.array([2.0, 0.5]), "noise": jnp.asarray(7.0)})
    np.testing.assert_allclose(found["slope"].mean, VECTOR.mean, rtol=1e-14)
    np.testing.assert_allclose(found["slope"].sd, VECTOR.sd * np.array([2.0, 0.5]), rtol=1e-14)
    assert eqx.tree_equal(found["noise"], q["noise"])
    with pytest.raises(InputError, match="A Product has no learnable scale"):
        Product(noise=q["noise"]).stretched({"noise": jnp.asarray(7.0)})


def test_an_empty_product_is_refused():
    with pytest.raises(InputError, match="at least one"):
        Product()
