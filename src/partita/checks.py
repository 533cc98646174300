"""Contract checks for user-defined families, models, solvers, schedules, aggregations and engines.

Each raises an `AssertionError` that describes the violation. The tolerances need double precision: first call
`jax.config.update("jax_enable_x64", True)`.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from partita.data.shard import Partition, federate
from partita.engines import Engine, Failure, LocalEngine, Task
from partita.expectations import Estimate
from partita.families import Family, inner
from partita.families.factor import Factor
from partita.io.wire import equal
from partita.local.client import Reply
from partita.local.objective import Problem
from partita.local.solvers import Outcome, Solver
from partita.models import Model
from partita.server.aggregation import Aggregation, Damped
from partita.server.method import Method
from partita.server.schedules import Schedule, ScheduleView, Sequential, Synchronous
from partita.server.state import init, with_learning
from partita.server.step import dispatch, step

__all__ = [
    "bound",
    "check_aggregation",
    "check_engine",
    "check_family",
    "check_invariant",
    "check_model",
    "check_schedule",
    "check_solver",
]


def check_family(q: Family, other: Family) -> None:
    """Checks a family at two different proper members of it."""
    _double(q)
    for holds, message in _conditions(q, other):
        assert holds, message
    for found, expected, tolerance, message in _agreements(q, other):
        _near(_distance(found, expected), 0, tolerance, message)
    assert str(q / q**2), "an improper factor does not print"
    for member in (q.at_standard(q.standard()), q.at_unconstrained(q.unconstrained())):
        trees: list[Any] = [jax.tree.structure(plain) for plain in (member.plain(), q)]
        assert trees[0] == trees[1], "plain() of a member for derivatives has more leaves than q"

    # draws, against the exact moments of the statistics (five standard errors)
    draws = q.sample(jax.random.key(0), (20_000,))
    statistics, log_probs = jax.device_get(
        jax.jit(jax.vmap(lambda drawn: (q.statistics(drawn), q.log_prob(drawn))))(draws)
    )
    means = jax.device_get(q.mean_parameters())
    for sampled, exact in zip(jax.tree.leaves(statistics), jax.tree.leaves(means), strict=True):
        error = np.abs(sampled.mean(0) - exact) / (sampled.std(0) / np.sqrt(len(sampled)) + 1e-12)
        assert error.max() < 5.5, f"draws do not have the mean parameters ({error.max():.1f} standard errors off)"
    error = abs(log_probs.mean() + float(q.entropy())) / (log_probs.std() / np.sqrt(len(log_probs)) + 1e-12)
    assert error < 5.5, f"E[−log q] is not the entropy ({error:.1f} standard errors off)"
    first = jax.tree.map(lambda leaf: leaf[0], jax.device_get(draws))
    trees = [jax.tree.structure(draw) for draw in (first, q.sample(jax.random.key(0)))]
    assert trees[0] == trees[1], "one draw has another shape"


def check_model(model: Model, q: Family, data: PyTree) -> None:
    """Checks a model with a posterior and some rows: ell is a weighted sum over rows and agrees with Monte Carlo.

    An expectation that is a lower bound need only lie below.
    """
    _double(q)
    model.check(jax.tree.map(np.asarray, data))
    rows = len(jax.tree.leaves(data)[0])
    key = jax.random.key(0)
    each = model.expectation.rows(model, q, data, key)
    assert each.shape == (rows,), "the expectation does not give a number per row"
    assert np.isfinite(each).all(), "the expectation is not finite"
    weights = jnp.linspace(0.0, 2.0, rows)
    _near(model.ell(q, data, weights, key), float(weights @ each), 1e-8, "ell is not the weighted sum over rows")

    draws = q.sample(jax.random.key(1), (4_000,))
    densities = jax.jit(jax.vmap(lambda theta: jax.vmap(model.log_density, in_axes=(None, 0))(theta, data)))(draws)
    error = np.asarray(densities).std(0) / np.sqrt(len(densities)) + 1e-9
    if model.expectation.bounds:
        off = (each - densities.mean(0)) / error
        assert off.max() < 6, f"the bound lies {off.max():.1f} standard errors above draws of θ"
    elif model.expectation.deterministic:
        off = np.abs(densities.mean(0) - each) / error
        assert off.max() < 6, f"the expectation disagrees with draws of θ by {off.max():.1f} standard errors"
    else:
        keys = jax.random.split(jax.random.key(2), 200)
        many = jax.jit(jax.vmap(lambda k: model.expectation.rows(model, q, data, k)))(keys)
        error = np.hypot(error, np.asarray(many).std(0) / np.sqrt(len(many)))
        off = np.abs(densities.mean(0) - many.mean(0)) / error
        assert off.max() < 6, f"the stochastic expectation is biased by {off.max():.1f} standard errors"


def check_solver(solver: Solver, model: Model, prior: Family, data: PyTree, start: Family | None = None) -> None:
    """Checks a solver on global VI: it compiles, reports an outcome, and does not lower the free energy."""
    _double(prior)
    shard = federate([data]).shards[0]
    start = prior if start is None else start
    problem = Problem(model, shard, Factor.of(prior), jnp.asarray(1.0), start, jnp.asarray(1.0))
    key = jax.random.key(0)
    before = problem.free_energy(start, key)
    solution = jax.jit(solver.solve)(problem, key)
    assert solution.q.is_proper(), "the solver ended at an improper member"
    assert int(solution.outcome) != Outcome.RUNNING, "the solver gives no reason why it stopped"
    assert 1 <= int(solution.steps) <= solver.max_steps, "the number of steps is not from 1 to max_steps"
    if model.expectation.deterministic:
        ratio = problem.free_energy(solution.q, key) / solution.free_energy
        _near(ratio, 1, 1e-8, "the free energy reported is not that of q")
        rise, rounding = float(solution.free_energy - before), 1e-10 * (1 + abs(float(before)))
        assert rise >= -rounding, "the solver ended lower than it began"
        assert rise > rounding, "the solver did not rise from a start that is not optimal"


def check_schedule(schedule: Schedule, clients: int = 5, turns: int = 100) -> None:
    """Checks that a schedule selects only idle clients, without duplicates, deterministically, and visits all."""
    schedule.check(clients)
    seen: set[int] = set()
    residual, age, busy = np.full(clients, np.inf), np.zeros(clients, int), np.zeros(clients, bool)
    generator = np.random.default_rng(0)
    for turn in range(turns):
        view = ScheduleView(turn, residual.copy(), age.copy(), busy.copy(), seed=0)
        chosen = schedule.select(view)
        assert chosen == schedule.select(view), "the same view gives different clients"
        assert len(set(chosen)) == len(chosen), "a client is selected twice"
        assert all(0 <= k < clients and not busy[k] for k in chosen), "a client that is not idle is selected"
        busy[list(chosen)] = True
        under_way = np.flatnonzero(busy)
        assert len(under_way), "nobody is at work"
        limit = schedule.answers_per_step
        answering = under_way if limit is None else generator.permutation(under_way)[:limit]
        age += 1
        for k in answering:
            busy[k], age[k] = False, 0
            residual[k] = generator.exponential() * (1e-6 if k == 0 else 1.0)
            seen.add(int(k))
    assert seen == set(range(clients)), f"clients {sorted(set(range(clients)) - seen)} are never visited"


def check_invariant(
    method: Method, model: Model, prior: Family, parts: Partition, steps: int = 20, tolerance: float = 1e-10
) -> None:
    """Checks that q = p · Π t_m holds after every step of a method, up to rounding."""
    engine = bound(method, model, prior, parts)
    state = init(prior, len(parts), aggregation=method.aggregation)
    for _ in range(steps):
        state, _ = step(method, model, engine, state)
        whole = prior
        for factor in state.factors:
            whole = whole * factor.natural
        _near(_distance(whole, state.posterior), 0, tolerance, "the posterior is not the prior times the factors")


def check_aggregation(aggregation: Aggregation, solver: Solver, model: Model, prior: Family, parts: Partition) -> None:
    """Checks an aggregation under the sequential schedule: the invariant holds, and a damping in [0, 1] is reported."""
    method = Method(solver, Sequential(), aggregation)
    check_invariant(method, model, prior, parts, steps=2 * len(parts))
    engine = bound(method, model, prior, parts)
    state, event = step(method, model, engine, init(prior, len(parts), aggregation=aggregation))
    assert 0 <= event.damping <= 1, "the damping taken is not in [0, 1]"
    undamped, _ = step(Method(solver, Sequential(), Damped()), model, engine, init(prior, len(parts)))
    expected = prior * (undamped.posterior / prior) ** event.damping
    _near(_distance(state.posterior, expected), 0, 1e-8, "the posterior did not move by the damping reported")


def check_engine(engine: Engine, method: Method, model: Model, prior: Family, timeout: float = 60.0) -> None:
    """Checks an engine that is not running: names, binding, one answer a task, the same at a retry, ell, its estimate.

    Every client must be online, and answer within `timeout` seconds of the engine's clock.
    """
    _double(prior)
    names = engine.names
    assert names, "there are no clients"
    assert len(set(names)) == len(names), "the clients' names are not distinct"
    away = engine.away(names)
    assert away.shape == (len(names),), "`away` does not tell of every client"
    assert not away.any(), "a client is said to be away"
    began = engine.now()
    engine.check(method.recipe(model), prior)
    engine.bind(method.recipe(model), prior)
    fresh = init(prior, names)
    if method.learning is not None:
        fresh = with_learning(fresh, method.learning, model)
    tasks = dispatch(Method(method.solver, Synchronous()), fresh, away).in_flight
    assert engine.sent_at("of nobody") == np.inf, "a task that was never submitted has a time of sending"

    with engine.running():
        first, second = (_answers(engine, tasks, timeout) for _ in range(2))
        for task in tasks:
            assert equal(first[task.id], second[task.id]), f"{task.name} answers a retry of its task otherwise"
        assert engine.now() >= began, "the clock runs backwards"
        key = jax.random.key(0)
        whole = engine.ell(prior, key)
        apart = [engine.ell(prior, key, [other for other in names if other != name]) for name in names]
        assert engine.ell(prior, key, names) == 0, "ell without any client is not 0"
        estimate = engine.estimate(prior, key)
        parts = [engine.estimate(prior, key, [other for other in names if other != name]) for name in names]
    _near(sum(apart), whole, 1e-8, "ell is not the sum over clients, or `without` leaves out others")
    for total, summed in zip(estimate, Estimate.sum(parts), strict=True):
        _near(np.max(np.abs(total - summed)), 0, 1e-8, "the estimate of ell is not the sum over clients")
    if model.expectation.deterministic:
        said = sum(float(reply.info.ell) for reply in first.values())
        _near(said, whole, 1e-8, "ell is not what clients report with their answers")
        _near(float(estimate.value), whole, 1e-8, "the estimate of ell is not ell")


def _answers(engine: Engine, tasks: Sequence[Task], timeout: float) -> dict[str, Reply]:
    """The answer to each task; each is submitted twice, and answered once."""
    for task in (*tasks, *tasks):
        engine.submit(task)
    replies: dict[str, Reply] = {}
    while len(replies) < len(tasks):
        received = engine.next(timeout)
        assert received is not None, f"there is no answer within {timeout:g} seconds"
        assert not isinstance(received, Failure), f"a task fails: its client {received.reason}"
        assert received.task in {task.id for task in tasks}, "an answer is to no task"
        assert received.task not in replies, "a task in flight is sent twice"
        replies[received.task] = received.reply
    assert engine.next(0.0) is None, "a task in flight is sent twice"
    return replies


def bound(method: Method, model: Model, prior: Family, parts: Partition) -> LocalEngine:
    """An engine in this process, ready for steps of a method."""
    engine = LocalEngine(parts)
    engine.bind(method.recipe(model), prior)
    return engine


def _double(q: Family) -> None:
    leaf = jax.tree.leaves(q)[0]
    assert leaf.dtype == jnp.float64, "the checks need double precision: jax.config.update('jax_enable_x64', True)"


@eqx.filter_jit
def _conditions(q: Family, other: Family) -> list[tuple[Bool[Array, ""], str]]:
    """What must be true of a family, and what is said where it is not."""
    one, factor = q.one(), q / q**2
    # where θ is bounded, as probabilities are, 1/q may be proper: then 1 is, which lies between q and 1/q
    bounded = one.is_proper() & jnp.isfinite(one.log_normaliser())
    finite = jnp.isfinite(factor.log_normaliser())
    flat, back = ravel_pytree(q.unconstrained())
    noise = jax.random.normal(jax.random.key(1), flat.shape)
    return [
        (q.is_proper(), "the member is not proper"),
        (other.is_proper(), "the other member is not proper"),
        (factor.is_finite(), "1/q is said not to be finite"),
        (bounded | ~factor.is_proper(), "1/q is said to be proper"),
        (factor.is_proper() == finite, "1/q is proper and its A not finite, or the reverse"),
        (q.with_unconstrained(back(flat + noise)).is_proper(), "an unconstrained point is not proper"),
        (q.kl(other) > 0, "KL(q ‖ p) is not positive"),
    ]


@eqx.filter_jit
def _agreements(q: Family, other: Family) -> list[tuple[PyTree, PyTree, float, str]]:
    """What must agree with what in a family, to which relative error, and what is said where it does not."""
    mean, symmetric = q.mean_parameters(), q.symmetrised()
    eta, unravel = ravel_pytree(q)
    hessian = jax.hessian(lambda e: unravel(e).log_normaliser())(eta)
    largest = jnp.abs(hessian).max()
    bregman = other.log_normaliser() - q.log_normaliser() - inner(other / q, mean)
    ascent = q.natural_gradient(lambda r: -r.kl(other))
    for_derivatives = "members for derivatives do not lead back"
    return [
        (q * q.one(), q, 0.0, "q · 1 is not q"),
        (q * other / other, q, 1e-10, "(q · p) / p is not q"),
        (q**2 / q, q, 1e-12, "q² / q is not q"),
        (symmetric, q, 1e-12, "symmetrised() changes a proper member"),
        (symmetric.symmetrised(), symmetric, 0.0, "symmetrised() twice is not symmetrised()"),
        (jax.grad(lambda r: r.log_normaliser())(q), mean, 1e-8, "mean_parameters() is not the gradient of A"),
        (q.fisher() / largest, hessian / largest, 1e-6, "fisher() is not the Hessian of A"),
        (q.with_mean_parameters(mean), q, 1e-6, "mean parameters do not lead back"),
        (other.with_mean_parameters(mean), q, 1e-6, "mean parameters depend on the start"),
        (q.with_standard(q.standard()), q, 1e-8, "standard parameters do not lead back"),
        (q.with_unconstrained(q.unconstrained()), q, 1e-8, "unconstrained coordinates do not lead back"),
        (q.at_standard(q.standard()).plain(), q, 1e-8, for_derivatives),
        (q.at_unconstrained(q.unconstrained()).plain(), q, 1e-8, for_derivatives),
        (q.kl(q), jnp.zeros(()), 1e-8, "KL(q ‖ q) is not 0"),
        (q.kl(other), bregman, 1e-8, "KL is not the Bregman divergence of A"),
        (q.entropy(), q.log_normaliser() - q.cross(q), 1e-8, "the entropy is not A − ⟨η, μ⟩"),
        (ascent, other / q, 1e-6, "the natural gradient of −KL(q ‖ p) is not p / q"),
    ]


def _near(value: Any, expected: float, tolerance: float, message: str) -> None:
    error = abs(float(value) - expected)
    assert error <= tolerance * max(1.0, abs(expected)), f"{message} (off by {error:.3g})"


def _distance(first: PyTree, second: PyTree) -> float:
    """The largest difference between parameters, relative to the size of the leaf they are in."""
    pairs = zip(jax.tree.leaves(jax.device_get(first)), jax.tree.leaves(jax.device_get(second)), strict=True)
    return float(np.max([np.abs(a - b).max() / max(1.0, np.abs(b).max()) for a, b in pairs]))
