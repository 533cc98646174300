"""Appendix B.8, `sec:nat-grad-mirror-trust`: what natural-gradient ascent is the solution of, and in which limit.

F is a client's local free energy, linearised at an old q with natural parameters η and Fisher matrix C; ρ is the rate.
Every problem is solved as it is printed, in NumPy and SciPy, and its solution held against partita's step: the damped
fixed point, whose change of η is ρ C⁻¹ dF/dη.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize, root

from partita import Gradient, MeanFieldGaussian, Newton
from partita.families.factor import Factor
from partita.local.solvers import FixedPoint, ProximalPoint
from support import reference
from support.scaling import order
from support.small_problems import KEY, problem, solve
from support.trajectories import assert_equal, member, natural

D = 2
X, Y = reference.logistic_data(rows=12, columns=D)
CAVITY = np.array([0.3, -0.2]), np.array([1.0, 2.0])
OLD = np.array([0.5, 0.4]), np.array([1.5, 2.5])
RATES = 0.02 / 4.0 ** np.arange(3)
LIKE = MeanFieldGaussian.standard_normal(D)


def flat(eta):
    return np.concatenate(eta)


def apart(vector):
    return vector[:D], vector[D:]


ETA = flat(OLD)
SLOPE = flat(reference.gradient(OLD, CAVITY, X, Y, reference.logistic))
"""dF/dη at the old q."""
FISHER = reference.fisher(OLD)
DIRECTION = np.linalg.solve(FISHER, SLOPE)
"""C⁻¹ dF/dη, which is dF/dμ."""


def mean_parameters(eta):
    """μ = (m, −½(v + m²))."""
    mean, variance = reference.standard(apart(eta))
    return np.concatenate([mean, -(variance + mean**2) / 2])


def toward(eta):
    """d/dη KL(q ‖ q_old) = C(η) (η − η_old)."""
    return reference.fisher(apart(eta)) @ (eta - ETA)


def halves(eta):
    """d/dη of the symmetrised KL, (KL(q ‖ q_old) + KL(q_old ‖ q)) / 2."""
    return (toward(eta) + mean_parameters(eta) - mean_parameters(ETA)) / 2


def exclusive(eta):
    return reference.kl(apart(eta), OLD)


def symmetrised(eta):
    return (eta - ETA) @ (mean_parameters(eta) - mean_parameters(ETA)) / 2


def solved(residual, start):
    found = root(residual, start, tol=1e-14)
    assert np.abs(found.fun).max() < 1e-10
    return found.x


def proximal(rate, slope=toward):
    """The q where ∇F · η − D(q, q_old) / ρ is stationary."""
    return solved(lambda eta: SLOPE - slope(eta) / rate, ETA + rate * DIRECTION)


def ball(rate, divergence, slope):
    """The best q with D(q, q_old) ≤ γ, and its multiplier; γ is the divergence of the natural-gradient step."""
    radius = divergence(ETA + rate * DIRECTION)

    def conditions(point):
        eta, multiplier = point[:-1], np.exp(point[-1])
        return np.append(SLOPE - multiplier * slope(eta), (divergence(eta) - radius) / radius)

    point = solved(conditions, np.append(ETA + rate * DIRECTION, -np.log(rate)))
    return point[:-1], np.exp(point[-1])


TASK = problem(member(LIKE, OLD), x=X, y=Y, context=Factor(member(LIKE, CAVITY), jnp.zeros(())))
"""The client's problem, whose rows and context are the reference's."""


def answer(solver):
    return flat(natural(solve(solver, TASK, KEY).q))


def step(rate):
    """Partita's damped fixed point."""
    return answer(FixedPoint(rate, max_steps=1, backtrack=False))


def misses(found):
    """By how much of the step each solution misses it."""
    return np.array([np.linalg.norm(found(rate) - step(rate)) / np.linalg.norm(step(rate) - ETA) for rate in RATES])


def test_a_damped_fixed_point_is_natural_gradient_ascent():
    for rate in RATES:
        np.testing.assert_allclose(step(rate), ETA + rate * DIRECTION, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_gradient_ascent_is_the_linearised_cost_with_a_euclidean_penalty(rate):
    """For every rate, since the penalised cost is quadratic."""
    found = minimize(
        lambda eta: -(SLOPE @ eta - np.sum((eta - ETA) ** 2) / (2 * rate)), ETA, method="BFGS", options={"gtol": 1e-9}
    )
    ascent = Gradient(optax.sgd, rate, max_steps=1, coordinates="natural", keep_best=False)
    np.testing.assert_allclose(answer(ascent), found.x, rtol=0, atol=1e-8)


def test_the_kl_proximal_step_is_the_damped_fixed_point_for_small_steps():
    """`eq-opt1`; relative to the step, the error is of the order of the step, since C changes along it."""
    found = misses(proximal)
    np.testing.assert_allclose(order(RATES, found), 1, atol=0.1)
    assert found[0] < 0.2


@pytest.mark.parametrize(("divergence", "slope"), [(exclusive, toward), (symmetrised, halves)])
def test_kl_trust_regions_are_the_proximal_step_and_the_damped_fixed_point_for_small_steps(divergence, slope):
    """`eq-opt2` and `eq-opt3`: exactly the proximal step whose 1/ρ is the multiplier, and the fixed point in the limit.

    The symmetrised KL is nearer to a quadratic form than KL is, but not its gradient: both err in the first order.
    """
    found = [ball(rate, divergence, slope) for rate in RATES]
    for (eta, multiplier), rate in zip(found, RATES, strict=True):
        np.testing.assert_allclose(eta, proximal(1 / multiplier, slope), rtol=0, atol=1e-9)
        assert multiplier == pytest.approx(1 / rate, rel=3 * rate)
    at = dict(zip(RATES, (eta for eta, _ in found), strict=True))
    np.testing.assert_allclose(order(RATES, misses(at.__getitem__)), 1, atol=0.1)


def mirror(rate, inclusive):
    """argmax over μ of ∇_μ F · μ − D / ρ."""

    def member_of(mean):
        first, second = apart(mean)
        variance = -2 * second - first**2
        return np.concatenate([first / variance, 1 / variance]), variance

    def cost(mean):
        eta, variance = member_of(mean)
        if np.any(variance <= 0):
            return np.inf, np.zeros_like(mean)
        pair = (OLD, apart(eta)) if inclusive else (apart(eta), OLD)
        by_mean = np.linalg.solve(reference.fisher(apart(eta)), mean - mean_parameters(ETA)) if inclusive else eta - ETA
        return reference.kl(*pair) / rate - DIRECTION @ mean, by_mean / rate - DIRECTION

    found = minimize(cost, mean_parameters(ETA), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert np.abs(found.jac).max() < 1e-6
    return member_of(found.x)[0]


def test_mirror_descent_is_the_damped_fixed_point_for_steps_of_any_size():
    """With KL(q ‖ q_old). The paper prints KL(q_old ‖ q), with which the error is of the order of the step."""
    whole = 1.0
    assert np.linalg.norm(step(whole) - ETA) > 0.5
    np.testing.assert_allclose(mirror(whole, inclusive=False), step(whole), rtol=0, atol=1e-6)
    assert np.abs(mirror(whole, inclusive=True) - step(whole)).max() > 0.1


def test_the_symmetrised_kl_is_half_a_quadratic_form_in_the_fisher_matrix_for_small_steps():
    """KLˢ = ½ Δηᵀ C Δη, with an error of the third order, where either KL alone errs by as much and more."""
    q, lengths = member(LIKE, OLD), 2.0 ** -np.arange(1, 6)
    rate = 0.2
    errors = []
    for length in lengths:
        change = rate * length * DIRECTION
        moved = member(LIKE, apart(ETA + change))
        assert float(q.distance(moved)) == pytest.approx(symmetrised(ETA + change), rel=1e-9)
        assert float(q.length(moved / q)) == pytest.approx(change @ FISHER @ change / 2, rel=1e-12)
        errors.append(abs(float(q.distance(moved)) - float(q.length(moved / q))))
    np.testing.assert_allclose(order(lengths, errors), 3, atol=0.15)


@pytest.mark.parametrize("rate", [0.2, 2.0])
def test_the_proximal_problem_without_linearising_is_solved_as_printed(rate):
    """argmax F(q) − KL(q ‖ q_old) / ρ (Theis and Hoffman 2015), once."""
    solver = ProximalPoint(Newton(tolerance=1e-20), rate, max_steps=1)
    found = apart(answer(solver))
    weight, old = rate / (1 + rate), reference.power(OLD, 1 / (1 + rate))
    context = reference.product(reference.power(CAVITY, weight), old)

    def rows(mean, variance, y):
        return tuple(weight * part for part in reference.logistic(mean, variance, y))

    np.testing.assert_allclose(flat(found), flat(reference.solve(context, X, Y, rows)), rtol=0, atol=1e-7)


def test_it_is_the_damped_fixed_point_for_small_steps_and_a_visit_of_many_ends_at_the_optimum():
    found = misses(lambda rate: answer(ProximalPoint(Newton(tolerance=1e-20), rate, max_steps=1)))
    np.testing.assert_allclose(order(RATES, found), 1, atol=0.1)
    best = reference.solve(CAVITY, X, Y, reference.logistic)
    solver = ProximalPoint(Newton(tolerance=1e-20), rate=3.0, max_steps=60, tolerance=1e-16)
    assert_equal(solve(solver, TASK, KEY).q, best, 1e-6)
    # where the context is improper q stays within the region around the start
    away = dataclasses.replace(TASK, context=Factor(member(LIKE, (CAVITY[0], -CAVITY[1])), jnp.zeros(())))
    assert np.isfinite(float(solve(solver, away, KEY).free_energy))
