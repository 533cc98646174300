"""Mean field by way of full covariance: the nearest member, and settling at mean field's own fixed point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.families import Product
from partita.server.bound import partition_free_energy
from support.problems import MODEL, PARTS, PRIOR, SOLVER, assert_product

QUIET = pt.Monitor(progress=False)
NEAR = pt.NearestMeanField.standard_normal(3)


def correlated_lines():
    """A conjugate model with correlated columns, in four parts."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(60, 3)) @ [[1, 0.9, 0], [0, 0.5, 0.3], [0, 0, 1.0]]
    data = pt.Table(x, x @ [1.0, -1.0, 0.5] + generator.normal(size=60))
    return pt.LinearRegression(), pt.split(data, pt.partitioners.equal_random(60, 4))


def fitted(prior, **options):
    model, parts = correlated_lines()
    return pt.run(pt.methods.synchronous(pt.Conjugate()), model, prior, parts, monitor=QUIET, **options)


def test_the_nearest_member_is_the_optimum_over_independent_gaussians():
    generator = np.random.default_rng(0)
    root = generator.normal(size=(4, 4))
    q = pt.NearestMeanField.from_mean_covariance(generator.normal(size=4), root @ root.T + np.eye(4))
    near = q.nearest()
    np.testing.assert_allclose(q.gap, near.kl(q), rtol=1e-12)
    # no direction in mean or log sd brings it nearer, and every step away takes it further
    mean, log_sd = near.mean, jnp.log(near.sd)

    def apart(mean, log_sd):
        return pt.NearestMeanField.from_mean_covariance(mean, jnp.diag(jnp.exp(2 * log_sd))).kl(q)

    for gradient in jax.grad(apart, argnums=(0, 1))(mean, log_sd):
        np.testing.assert_allclose(gradient, 0, atol=1e-10)
    assert all(apart(mean + away, log_sd - away) > q.gap for away in generator.normal(size=(5, 4)))
    np.testing.assert_allclose(q.returned.precision, jnp.diagonal(near.precision), rtol=1e-12)


def test_factors_within_the_smaller_family_multiply_to_what_is_returned():
    result = pt.run(pt.methods.synchronous(SOLVER), MODEL, NEAR, PARTS, rounds=2, monitor=QUIET)
    state = result.state
    assert_product(state)
    parts = [state.posterior.within(factor.natural) for factor in state.factors]
    whole = state.posterior.within(state.prior) * parts[0] * parts[1] * parts[2]
    for found, expected in zip(jax.tree.leaves(whole), jax.tree.leaves(result.posterior.q), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_conjugate_model_arrives_at_the_optimum_of_mean_field_in_the_rounds_of_full_covariance():
    near, own = fitted(NEAR), fitted(PRIOR)
    assert (near.status, own.status) == (pt.Status.NEAREST, pt.Status.CONVERGED)
    assert near.history["rounds"][-1] < own.history["rounds"][-1] / 2
    np.testing.assert_allclose(near.free_energy, own.free_energy, rtol=1e-7)
    np.testing.assert_allclose(near.posterior.mean, own.posterior.mean, rtol=1e-3)
    x = np.concatenate([np.asarray(shard.data.x[: int(shard.rows)]) for shard in correlated_lines()[1].shards])
    np.testing.assert_allclose(near.posterior.sd, 1 / np.sqrt((x**2).sum(0) + 1), rtol=1e-9)
    assert near.state.posterior.gap > 0.1
    for said in ("converged", "so far"):
        assert said not in repr(near)
    for said in ("nearest MeanFieldGaussian", "12 numbers", "have 6", f"{near.state.posterior.gap:.3g} nats"):
        assert said in near.message


def test_a_run_that_settles_says_converged_and_only_then():
    near = fitted(NEAR, tolerance=1e-11)
    settled = fitted(PRIOR, state=near.state)
    assert settled.status is pt.Status.CONVERGED
    # the factors are those of the fixed point already, so that every client answers with what it has
    assert settled.history["residual"][0] < 1e-10
    assert len(settled.history) == 1
    assert_product(settled.state)


@pytest.mark.parametrize(
    "method",
    [pt.methods.sequential(SOLVER), pytest.param(pt.methods.asynchronous(SOLVER), marks=pytest.mark.slow)],
    ids=lambda method: type(method.schedule).__name__,
)
def test_a_model_that_is_not_conjugate_settles_higher(method):
    near = pt.run(method, MODEL, NEAR, PARTS, monitor=QUIET)
    settled = pt.run(method, MODEL, PRIOR, PARTS, state=near.state, monitor=QUIET)
    assert (near.status, settled.status) == (pt.Status.NEAREST, pt.Status.CONVERGED)
    assert 0 <= settled.free_energy - near.free_energy < 0.3
    alone = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, monitor=QUIET)
    np.testing.assert_allclose(settled.free_energy, alone.free_energy, atol=1e-4)


def test_the_free_energy_is_that_of_what_is_returned():
    model, parts = correlated_lines()
    result = fitted(NEAR, tolerance=1e-11)
    own = partition_free_energy(model, parts, PRIOR, result.posterior.q, 0)
    np.testing.assert_allclose(result.free_energy, own, rtol=1e-12)
    # clients report that of the full posterior, which is higher by the gap; exactly so for a conjugate model
    whole = partition_free_energy(model, parts, NEAR, result.state.posterior, 0)
    np.testing.assert_allclose(whole - own, result.state.posterior.gap, rtol=1e-6)


def test_another_prior_is_refused_as_ever():
    near = fitted(NEAR, rounds=2)
    for other in (pt.FullGaussian.standard_normal(3), pt.MeanFieldGaussian.standard_normal(3, 2.0)):
        with pytest.raises(pt.InputError, match="another prior"):
            fitted(other, state=near.state)


def test_standard_deviations_with_full_covariance_are_known_without_rows():
    near = fitted(NEAR)
    wider = np.asarray(near.state.posterior.sd / near.posterior.sd)
    assert wider.max() > 1.2
    np.testing.assert_allclose(near.posterior.mean_field.found[wider > 1.2], wider[wider > 1.2], rtol=1e-9)
    assert "with full covariance" in repr(near)


def test_a_product_returns_what_its_components_return():
    sd = jnp.array([1.0, 2.0])
    q = Product(slope=pt.NearestMeanField.from_mean_sd(jnp.zeros(2), sd), level=pt.FullGaussian.standard_normal(1))
    assert isinstance(q.returned["slope"], pt.MeanFieldGaussian)
    np.testing.assert_allclose(q.returned["slope"].sd, sd)
    assert isinstance(q.returned["level"], pt.FullGaussian)
    assert q.gap == 0
    assert Product(level=pt.FullGaussian.standard_normal(1)).gap is None


@pytest.mark.parametrize("store", [pt.Checkpoint, pt.Ledger])
def test_it_is_kept_as_the_full_posterior_and_goes_on(store, tmp_path):
    method, settings = pt.methods.synchronous(SOLVER), {"tolerance": None, "monitor": QUIET}
    whole = pt.run(method, MODEL, NEAR, PARTS, rounds=4, **settings)
    for rounds in (2, 4):
        parts = pt.run(method, MODEL, NEAR, PARTS, rounds=rounds, store=store(tmp_path / "run"), **settings)
    np.testing.assert_allclose(parts.posterior.mean, whole.posterior.mean, rtol=1e-3)
    whole.posterior.save(tmp_path / "q.npz")
    assert isinstance(pt.Posterior.load(tmp_path / "q.npz", MODEL).q, pt.MeanFieldGaussian)
