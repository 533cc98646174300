"""Densities of any form, and the products of their powers that factors are."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from partita import Damped, FullGaussian, LogDensity, Method, Rules, Synchronous, federate, methods, run
from partita.errors import SettingsError
from partita.expectations import MonteCarlo, Points
from partita.families import AnyForm, Flow, Mixture
from partita.local.context import Prior
from partita.local.solvers import LBFGS, Gradient
from partita.server.admission import Admission

SIDE = np.linspace(-12, 12, 241)
GRID = np.stack(np.meshgrid(SIDE, SIDE, indexing="ij"), axis=-1).reshape(-1, 2)
CELL = (SIDE[1] - SIDE[0]) ** 2
MEANS = np.array([[1.0, 2.0], [-1.5, 0.5], [0.0, -2.0]])


def some_mixture(seed=0):
    drawn = np.random.default_rng(seed)
    return Mixture(
        jnp.asarray(drawn.normal(size=3)), jnp.asarray(MEANS), jnp.asarray(drawn.normal(0, 0.3, size=(3, 2, 2)))
    )


def some_flow(seed=0):
    flow, drawn = Flow.of(Mixture.normal(2, 2), layers=3, units=4), np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(drawn.normal(0, 0.15, leaf.shape)), flow)


FORMS = {"mixture": some_mixture, "flow": some_flow}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_a_normalised_density_whose_points_and_draws_are_its_own(form):
    density = FORMS[form]()

    @jax.jit
    def seen(density):
        logs = jax.vmap(density.log_prob)(GRID)
        return logs, *whole.points(), density.sample(jax.random.key(0), (4_000,))

    whole = AnyForm.of(density, visits=1, draws=512)
    logs, theta, masses, drawn = map(np.asarray, seen(density))
    mass = np.exp(logs) * CELL
    assert mass.sum() == pytest.approx(1, abs=1e-5)
    mean = mass @ GRID
    spread = np.sqrt(mass @ (GRID - mean) ** 2)
    assert masses.sum() == pytest.approx(1)
    # a lattice's error is a few times 1/512 of the spread
    np.testing.assert_allclose(masses @ theta, mean, atol=0.02 * spread.max())
    np.testing.assert_allclose(np.sqrt(masses @ (theta - mean) ** 2), spread, rtol=0.02)
    # five standard errors
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * spread.max() / np.sqrt(4_000))


def test_a_mixtures_density_is_scipys():
    mixture = some_mixture()
    roots = np.tril(mixture.roots, -1) + np.exp(mixture.roots) * np.eye(2)
    shares = np.exp(mixture.logits) / np.exp(mixture.logits).sum()
    parts = [multivariate_normal(m, r @ r.T).pdf(GRID[:50]) for m, r in zip(MEANS, roots, strict=True)]
    found = jax.jit(jax.vmap(mixture.log_prob))(GRID[:50])
    np.testing.assert_allclose(found, np.log(shares @ parts), rtol=1e-12)


def test_a_flows_density_is_the_change_of_variables():
    flow, noise = some_flow(), jnp.asarray(np.random.default_rng(1).normal(size=(5, 2)))

    @jax.jit
    def seen(flow):
        (theta, _), (values, _) = flow.points(noise), flow.base.points(noise)
        straight = eqx.tree_at(lambda f: f.base, flow, Mixture.normal(2, 1))
        jacobian = jax.vmap(jax.jacfwd(lambda one: straight.points(one[None])[0][0]))(values)
        return jax.vmap(flow.log_prob)(theta), jax.vmap(flow.base.log_prob)(values), jacobian

    found, base, jacobian = seen(flow)
    np.testing.assert_allclose(found, base - np.linalg.slogdet(jacobian)[1], rtol=1e-11)


@pytest.fixture(scope="module")
def trail():
    """A prior and the two posteriors that a run has visited after it."""
    prior = AnyForm.of(Mixture.normal(2, 3), visits=3, draws=8)
    first = put(prior, some_mixture(1))
    return prior, first, put(first, some_mixture(2))


put = jax.jit(lambda q, form: q.with_unconstrained(form))


def test_products_and_quotients_are_those_of_densities(trail):
    @jax.jit
    def products(prior, first, second):
        factor = first / prior
        return second / factor, prior * factor * (second / first), factor**0.5, prior.one()

    logs_of = jax.jit(lambda q: (q.log_prob(jnp.array([0.3, -0.7])), q.is_proper(), q.log_normaliser()))
    logs = [float(logs_of(q)[0]) for q in trail]
    assert len(set(logs)) == 3
    cavity, whole, half, one = map(logs_of, products(*trail))
    assert float(cavity[0]) == pytest.approx(logs[2] - logs[1] + logs[0], rel=1e-12)
    assert not cavity[1]
    assert np.isnan(cavity[2])
    assert whole[1]
    assert float(whole[0]) == logs[2]
    assert float(whole[2]) == 0
    assert float(half[0]) == pytest.approx((logs[1] - logs[0]) / 2, rel=1e-12)
    assert float(one[0]) == 0


def test_expectations_are_sums_over_its_points(trail):
    @jax.jit
    def seen(prior, first, second):
        theta, masses = first.points()
        logs = jnp.stack([q.log_density(theta) for q in (prior, first, second)])
        others = first.kl(second), second.kl(first), first.entropy(), first.length(second / first)
        rest = first.distance(second), first.mean_parameters()[0], second.statistics(theta[0])[0]
        return masses, logs, *others, *rest

    masses, logs, there, back, entropy, length, distance, means, statistics = map(np.asarray, seen(*trail))
    assert there == pytest.approx(masses @ (logs[1] - logs[2]), rel=1e-12)
    assert entropy == pytest.approx(-masses @ logs[1], rel=1e-12)
    np.testing.assert_allclose(statistics[:3], logs[:, 0], rtol=1e-12)
    apart = logs[2] - logs[1] - masses @ (logs[2] - logs[1])
    assert length == pytest.approx(masses @ apart**2 / 2, rel=1e-12)
    assert distance == pytest.approx((there + back) / 2, rel=1e-12)
    np.testing.assert_allclose(means[:2], masses @ logs[:2].T, rtol=1e-12)


def test_two_changes_of_one_posterior_cannot_be_multiplied(trail):
    prior, first, _ = trail
    other = put(prior, some_mixture(5))
    found = jax.jit(lambda p, a, b: (p * (a / p) * (b / p)).is_finite())
    assert found(prior, first, first / (first / prior))
    assert not found(prior, first, other)


def test_where_there_is_no_room_nothing_is_overwritten(trail):
    _, _, second = trail
    proper = jax.jit(lambda q: q.is_proper())
    last = put(second, some_mixture(3))
    assert last.full
    assert proper(last)
    beyond = put(last, some_mixture(4))
    assert not proper(beyond)
    np.testing.assert_array_equal(beyond.forms.logits, last.forms.logits)


PARTS = federate([np.zeros(3), np.ones(3)])
MODEL = LogDensity(lambda theta, y: -0.5 * (y - theta[0]) ** 2, expectation=Points())
PRIOR = AnyForm.of(Mixture.normal(2, 1), visits=2, draws=8)
SOLVER = LBFGS(max_steps=2)


def began(method=None, model=MODEL, prior=PRIOR, **given):
    return run(method or methods.sequential(SOLVER), model, prior, PARTS, rounds=1, **given)


MISTAKES = {
    "many at once": (lambda: began(methods.synchronous(SOLVER)), "neither damped nor multiplied with each other"),
    "undamped, many at once": (lambda: began(Method(SOLVER, Synchronous(), Damped())), "neither damped nor multiplied"),
    "asynchronous": (lambda: began(methods.asynchronous(SOLVER, 1.0)), "use methods.sequential(), undamped"),
    "damped": (lambda: began(methods.sequential(SOLVER, damping=0.5)), "can be neither damped"),
    "backtracking": (lambda: began(methods.sequential(SOLVER, backtracking=True)), "can be neither damped"),
    "the prior as context": (lambda: began(Method(SOLVER, context=Prior())), "must begin at the posterior"),
    "a restart": (lambda: began(methods.sequential(SOLVER, start=PRIOR, restart=True)), "without restart"),
    "natural gradients": (
        lambda: began(methods.stochastic_local(order="fixed")),
        "An AnyForm has no natural gradients: use the solver LBFGS, or Gradient.",
    ),
    "natural coordinates": (
        lambda: began(methods.sequential(Gradient(coordinates="natural", max_steps=2))),
        "An AnyForm has no natural coordinates",
    ),
    "a solver for Gaussians": (lambda: began(methods.sequential()), "Newton"),
    "draws": (
        lambda: began(model=LogDensity(MODEL.function, expectation=MonteCarlo())),
        "no gradient: use the expectation Points",
    ),
    "points of a Gaussian": (
        lambda: began(prior=FullGaussian.standard_normal(2)),
        "A FullGaussian has no points of its own: use MonteCarlo",
    ),
    "the prior's scale": (lambda: began(methods.sequential(SOLVER, learn=["prior_scale"])), "no learnable scale"),
    "bounds on precisions": (
        lambda: began(rules=Rules(admission=Admission(change=1.0, dominance=2.0))),
        "no directional precision",
    ),
    "no form": (lambda: AnyForm.of(FullGaussian.standard_normal(2)), "The form must be a Form"),
    "one parameter": (lambda: Flow.of(Mixture.normal(1, 1)), "use a Mixture"),
    "no components": (lambda: Mixture.from_means_sd(np.zeros(2)), "a row for each component"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(mistake):
    happens, sentence = MISTAKES[mistake]
    with pytest.raises(SettingsError) as raised:
        happens()
    assert sentence in str(raised.value)
    assert str(raised.value).count(". ") == 0
