"""Each check fails on a member that is broken in the way it looks for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import LogisticRegression, MeanFieldGaussian, Method, Table, checks
from partita.data import federate
from partita.expectations import Expectation, GaussHermite, MonteCarlo
from partita.families.gaussian import Standard
from partita.local.solvers import FixedPoint
from partita.local.solvers.base import Progress, Solution, Solver, running
from partita.server.aggregation import Damped
from partita.server.schedules import Asynchronous, RandomSubset, Schedule, Sequential, Synchronous

X = np.array([[1.0, 0.5, -0.2], [1.0, -1.0, 0.7], [1.0, 0.1, 1.4], [1.0, 2.0, 0.3], [1.0, -0.3, -1.0]])
DATA = Table(jnp.asarray(X), jnp.array([0.0, 1.0, 1.0, 0.0, 1.0]))
MEAN, SD = jnp.array([0.3, -1.0, 2.0]), jnp.array([0.5, 1.2, 2.0])
Q, PRIOR = MeanFieldGaussian.from_mean_sd(MEAN, SD), MeanFieldGaussian.standard_normal(3)


class WrongNormaliser(MeanFieldGaussian):
    def log_normaliser(self):
        return 2 * super().log_normaliser()


class ShiftedNormaliser(MeanFieldGaussian):
    def log_normaliser(self):
        return super().log_normaliser() + 1


class AlwaysProper(MeanFieldGaussian):
    def is_proper(self):
        return self.is_finite()


class WideDraws(MeanFieldGaussian):
    def sample(self, key, shape=()):
        return self.mean + 1.1 * (super().sample(key, shape) - self.mean)


class HalfDivergence(MeanFieldGaussian):
    def kl(self, other):
        return super().kl(other) / 2


class PlainGradient(MeanFieldGaussian):
    def pull_back(self, gradient):
        return type(self)(gradient.mean, -2 * gradient.variance)


class Forgetful(MeanFieldGaussian):
    def with_mean_parameters(self, mean):
        return self


class NotANumber(MeanFieldGaussian):
    """In its second leaf only."""

    def with_standard(self, standard):
        return type(self)(standard.mean / standard.variance, standard.variance * jnp.nan)


class Twisting(MeanFieldGaussian):
    def symmetrised(self):
        return self**2


class Shrinking(MeanFieldGaussian):
    """By so little that one proper member passes for another."""

    def symmetrised(self):
        return self ** (1 - 1e-13)


class Elsewhere(MeanFieldGaussian):
    def at_standard(self, standard):
        return self.with_standard(standard) ** 2


class Bounded(MeanFieldGaussian):
    """Its coordinates are not unconstrained."""

    def unconstrained(self):
        return self.standard()

    def with_unconstrained(self, unconstrained):
        return self.with_standard(Standard(*unconstrained))


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (WrongNormaliser, "mean_parameters"),
        (ShiftedNormaliser, "entropy"),
        (AlwaysProper, "1/q is said to be proper"),
        (WideDraws, "draws do not have the mean parameters"),
        (HalfDivergence, "Bregman"),
        (PlainGradient, "natural gradient"),
        (Forgetful, "depend on the start"),
        (NotANumber, "do not lead back"),
        (Twisting, "changes a proper member"),
        (Shrinking, "twice is not"),
        (Elsewhere, "members for derivatives do not lead back"),
        (Bounded, "unconstrained point is not proper"),
    ],
)
def test_a_broken_family_is_caught(family, message):
    # Means of 0.1 and variances of 0.3: a noise of 1 leaves the half-line of variances.
    tight = family.from_mean_sd(jnp.full(3, 0.1), 0.3**0.5)
    with pytest.raises(AssertionError, match=message):
        checks.check_family(tight, family.standard_normal(3))


class MeanOfRows(LogisticRegression):
    def ell(self, q, data, weights, key):
        return super().ell(q, data, weights, key) / len(weights)


class AtTheMean(GaussHermite):
    """Forgets that the predictor varies."""

    def at_predictor(self, model, mean, variance, data):
        return super().at_predictor(model, mean, 0 * variance, data)


class NoBound(AtTheMean):
    """Log densities at the mean of θ, which for a concave one are above their mean, said to be below."""

    bounds = True


class Total(GaussHermite):
    def rows(self, model, q, data, key):
        return jnp.sum(super().rows(model, q, data, key))


class NarrowDraws(MonteCarlo):
    def shared(self, model, q, data):
        return MeanFieldGaussian.from_mean_sd(q.mean, q.sd / 3)


class Overflowing(Expectation):
    def rows(self, model, q, data, key):
        return jnp.full(len(data.y), -jnp.inf)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (MeanOfRows(), "ell is not the weighted sum"),
        (LogisticRegression(expectation=AtTheMean()), "disagrees with draws of θ"),
        (LogisticRegression(expectation=NoBound()), "above draws of θ"),
        (LogisticRegression(expectation=Total()), "a number per row"),
        (LogisticRegression(expectation=NarrowDraws()), "biased"),
        (LogisticRegression(expectation=Overflowing()), "not finite"),
    ],
)
def test_a_broken_model_is_caught(model, message):
    with pytest.raises(AssertionError, match=message):
        checks.check_model(model, Q, DATA)


class Stubborn(Solver):
    """Stays where it is, and otherwise does as it is told."""

    max_steps: int = 3

    def step(self, problem, progress, index, key):
        return progress


class Downhill(Stubborn):
    def step(self, problem, progress, index, key):
        q = problem.start.with_standard(Standard(progress.q.mean - 5.0, progress.q.variance))
        return Progress(q, problem.free_energy(q, key), running())


class Improper(Stubborn):
    def step(self, problem, progress, index, key):
        return Progress(progress.q**-1.0, progress.free_energy, running())


class Boastful(Stubborn):
    def step(self, problem, progress, index, key):
        return progress._replace(free_energy=progress.free_energy + 1)


class Silent(Stubborn):
    def solve(self, problem, key):
        solution = super().solve(problem, key)
        return Solution(solution.q, solution.free_energy, solution.steps, running())


class Idle(Stubborn):
    max_steps: int = 0


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (Stubborn(), "did not rise"),
        (Downhill(), "ended lower"),
        (Improper(), "improper"),
        (Boastful(), "reported is not that of q"),
        (Silent(), "no reason"),
        (Idle(), "from 1 to max_steps"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_broken_solver_is_caught(solver, message):
    with pytest.raises(AssertionError, match=message):
        checks.check_solver(solver, LogisticRegression(), PRIOR, DATA)


class Starving(Schedule):
    def select(self, turns):
        return [turns.turn % (len(turns.size) - 1)]


class Twice(Schedule):
    def select(self, turns):
        return [0, 0]


class Impatient(Asynchronous):
    """Sends to clients that are at work."""

    def select(self, turns):
        return list(range(len(turns.size)))


class Fickle(Schedule):
    generator: np.random.Generator

    def select(self, turns):
        return [int(self.generator.integers(len(turns.size)))]


class Nobody(Schedule):
    def select(self, turns):
        return []


class Outsider(Schedule):
    def select(self, turns):
        return [turns.turn]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Starving(), r"clients \[4\] are never visited"),
        (Twice(), "selected twice"),
        (Impatient(), "not idle"),
        (Fickle(np.random.default_rng(0)), "same view"),
        (Nobody(), "nobody is at work"),
        (Outsider(), "not idle"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_broken_schedule_is_caught(schedule, message):
    with pytest.raises(AssertionError, match=message):
        checks.check_schedule(schedule)


@pytest.mark.parametrize("schedule", [Sequential(), Synchronous(), RandomSubset(2), Asynchronous()])
def test_a_sound_schedule_passes(schedule):
    checks.check_schedule(schedule)


class OneSided(Damped):
    """Moves the posterior further than the factors."""

    def update(self, iterate, deltas, free_energy):
        taken = super().update(iterate, deltas, free_energy)
        further = iterate.posterior * (taken.iterate.posterior / iterate.posterior) ** 1.5
        return taken._replace(iterate=taken.iterate._replace(posterior=further))


class Overstated(Damped):
    def update(self, iterate, deltas, free_energy):
        return super().update(iterate, deltas, free_energy)._replace(damping=1.0)


class Unheard(Damped):
    def update(self, iterate, deltas, free_energy):
        return super().update(iterate, deltas, free_energy)._replace(damping=2.0)


PARTS = federate([jax.tree.map(lambda leaf: leaf[:3], DATA), jax.tree.map(lambda leaf: leaf[2:], DATA)])
SOLVER = FixedPoint(max_steps=2)


@pytest.mark.parametrize(
    ("aggregation", "message"),
    [
        (OneSided(0.5), "not the prior times the factors"),
        (Overstated(0.5), "did not move by the damping reported"),
        (Unheard(0.5), r"not in \[0, 1\]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_broken_aggregation_is_caught(aggregation, message):
    with pytest.raises(AssertionError, match=message):
        checks.check_aggregation(aggregation, SOLVER, LogisticRegression(), PRIOR, PARTS)


def test_a_broken_invariant_is_caught():
    with pytest.raises(AssertionError, match="not the prior times the factors"):
        checks.check_invariant(Method(SOLVER, aggregation=OneSided(0.5)), LogisticRegression(), PRIOR, PARTS, steps=1)


@pytest.mark.parametrize(
    "check",
    [
        lambda q: checks.check_family(q, q),
        lambda q: checks.check_model(LogisticRegression(), q, DATA),
        lambda q: checks.check_solver(SOLVER, LogisticRegression(), q, DATA),
    ],
)
def test_single_precision_is_refused_with_the_remedy(check):
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), Q)
    with pytest.raises(AssertionError, match="jax_enable_x64"):
        check(single)
