"""What an answer must keep to before it counts."""

import re

import equinox as eqx
import numpy as np
import optax
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.server.admission import Admission, divergence, products_of_others, ratios
from partita.server.rules import Rules
from partita.server.state import init
from support.problems import MODEL, PARTS, PRIOR, SOLVER
from support.steps import step

STRICT = Admission(change=100.0, dominance=100.0, deficit=0.05)
FAMILIES = [pt.MeanFieldGaussian, pt.FullGaussian]


def answers(method, prior, rounds, change=None, rules=None):
    """The state after some rounds in which client 1's answers are changed, and the events on the way."""
    engine, state, events = LocalEngine(PARTS), init(prior, 3, aggregation=method.aggregation), []
    honest = engine.answer
    if change is not None:
        engine.answer = lambda task: (change if task.client == 1 else lambda r: r)(honest(task))
    for _ in range(rounds):
        state, event = step(method, MODEL, engine, state, rules or Rules(admission=STRICT))
        events.append(event)
    return state, events


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", [pt.methods.sequential(SOLVER), pt.methods.synchronous(SOLVER)])
def test_honest_answers_are_admitted(family, method):
    _, events = answers(method, family.standard_normal(3), 12)
    assert not any(event.refusals for event in events)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("power", "reason"), [(-1.0, "takes away"), (1e4, "nats from the posterior|times the precision")]
)
def test_a_flipped_or_inflated_first_answer_is_refused(family, power, reason):
    def change(reply):
        return eqx.tree_at(lambda r: r.delta, reply, reply.delta**power)

    method, prior = pt.methods.synchronous(SOLVER), family.standard_normal(3)
    state, (event,) = answers(method, prior, 1, change)
    assert list(event.refusals) == [1]
    assert not np.any(state.factors[1].natural.precision)
    assert re.search(reason, event.refusals[1].sentence)
    honest, _ = answers(method, prior, 1)
    np.testing.assert_allclose(state.factors[0].natural.precision, honest.factors[0].natural.precision, rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_ratios_of_precision_are_those_in_every_direction(family):
    """The greatest of vᵀPv / vᵀQv over random directions v comes near the greatest ratio and never exceeds it."""
    generator = np.random.default_rng(0)
    prior = family.standard_normal(3)
    roots = generator.normal(size=(2, 3, 3))
    first, second = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(3)
    if family is pt.MeanFieldGaussian:
        first, second = np.diag(first), np.diag(second)
    p, q = (eqx.tree_at(lambda member: member.precision, prior, precision) for precision in (first, second))
    least, greatest = p.precision_range(q)
    directions = generator.normal(size=(20_000, 3)) if family is pt.FullGaussian else np.eye(3)
    first, second = (np.diag(m) if m.ndim == 1 else m for m in (first, second))
    ratios = np.einsum("nd,de,ne->n", directions, first, directions) / np.einsum(
        "nd,de,ne->n", directions, second, directions
    )
    assert least <= ratios.min() * (1 + 1e-12)
    assert ratios.max() <= greatest * (1 + 1e-12)
    np.testing.assert_allclose([least, greatest], [ratios.min(), ratios.max()], rtol=0.05)


def test_a_product_is_measured_part_by_part():
    part = pt.MeanFieldGaussian.standard_normal(2)
    one, two = pt.families.Product(a=part**2.0, b=part**-0.5), pt.families.Product(a=part, b=part)
    assert tuple(map(float, one.precision_range(two))) == (-0.5, 2.0)


def test_the_first_answers_are_compared_with_each_other():
    """Against the prior alone an honest first answer looks enormous; beside as much evidence of others it does not."""
    alone = (PRIOR, PRIOR.one(), PRIOR**50.0, PRIOR.one())
    beside = (PRIOR, PRIOR.one(), PRIOR**50.0, PRIOR**99.0)
    assert (float(ratios(*alone)[1]), float(ratios(*beside)[1])) == (50.0, 0.5)
    assert float(divergence(*beside)) < float(divergence(*alone))


@pytest.mark.parametrize("family", FAMILIES)
def test_change_is_the_kl_between_the_posteriors_with_and_without_a_client(family):
    prior = family.standard_normal(3)
    factor, change, beside = prior**2.0, prior**0.5, prior**4.0
    q = prior * factor
    assert float(divergence(q, factor, change, beside)) == pytest.approx(
        float((prior * factor * change * beside).kl(prior * beside)), rel=1e-12
    )


def test_bounds_do_not_apply_to_a_fast_client_before_others_have_answered():
    """It answers forty times while the others work on their first task; beside the prior alone it would be refused."""
    bounds = Admission(dominance=5.0)
    engine, method = LocalEngine(PARTS, [40.0, 1.0, 1.0]), pt.methods.asynchronous(SOLVER)
    state, dominance = init(PRIOR, 3, aggregation=method.aggregation), []
    for _ in range(60):
        state, event = step(method, MODEL, engine, state, Rules(admission=bounds))
        assert not event.refusals
        about = (state.posterior, state.factors[0].natural, PRIOR.one(), PRIOR.one())
        dominance.append(float(ratios(*about)[1]))
    assert state.versions[1] > 0
    assert max(dominance) > 5.0


def test_bounds_apply_eventually_even_if_a_client_never_answers():
    method, engine, state = pt.methods.synchronous(SOLVER, damping=1 / 3), LocalEngine(PARTS), init(PRIOR, 3)
    silent = np.array([False, False, True])
    engine.away = lambda names: silent
    honest, refused = engine.answer, []
    engine.answer = lambda task: (
        eqx.tree_at(lambda r: r.delta, honest(task), honest(task).delta ** 1e4)
        if task.client == 1 and state.turn > 8
        else honest(task)
    )
    for _ in range(10):
        state, event = step(method, MODEL, engine, state, Rules(admission=STRICT))
        refused.append(list(event.refusals))
    assert refused == [[]] * 9 + [[1]]


def test_many_small_steps_lead_no_farther_than_one():
    """The mean is pushed a little in every round, which no bound on a single answer would notice."""

    def push(reply):
        return eqx.tree_at(lambda r: r.delta.natural.precision_mean, reply, replace_fn=lambda b: 0 * b + 3.0)

    method = pt.methods.synchronous(SOLVER, damping=1 / 3)
    state, events = answers(method, PRIOR, 60, push, Rules(admission=Admission(change=2.0)))
    held = state.factors[1].natural
    assert float(divergence(state.posterior, held, held.one(), held.one())) <= 2.0
    assert events[-1].refusals.keys() == {1}
    assert not events[0].refusals


@pytest.mark.parametrize("first", [True, False])
def test_the_first_answer_of_a_sequential_run_is_checked_once_others_have_answered(first):
    """The attacker, alone with the prior when it answers, is divided out later; an honest first client is not."""
    engine, state, events = LocalEngine(PARTS), init(PRIOR, 3), []
    honest, attacker = engine.answer, 0 if first else 2

    def answer(task):
        reply = honest(task)
        return eqx.tree_at(lambda r: r.delta, reply, reply.delta**1e4) if task.client == attacker else reply

    engine.answer = answer
    for _ in range(9):
        state, event = step(pt.methods.sequential(SOLVER), MODEL, engine, state, Rules(admission=STRICT))
        events.append(event)
    assert {k for event in events for k in event.refusals} == {attacker}
    assert not np.any(state.factors[attacker].natural.precision)
    others = [k for k in range(3) if k != attacker]
    product = PRIOR * state.factors[others[0]].natural * state.factors[others[1]].natural
    np.testing.assert_allclose(state.posterior.precision, product.precision, rtol=1e-12)
    np.testing.assert_allclose(state.posterior.precision_mean, product.precision_mean, rtol=1e-10)


def test_outlying_clients_are_refused_by_prominence():
    """Under any unit of the data: the bound has none."""

    def change(reply):
        return eqx.tree_at(lambda r: r.delta.natural.precision_mean, reply, -50 * reply.delta.natural.precision_mean)

    bounds = Admission(prominence=5.0)
    method = pt.methods.synchronous(SOLVER)
    _, events = answers(method, PRIOR, 8, rules=Rules(admission=bounds))
    assert not any(event.refusals for event in events)
    state, events = answers(method, PRIOR, 8, change, rules=Rules(admission=bounds))
    assert all(list(event.refusals) == [1] and "times as far" in event.refusals[1].sentence for event in events)
    assert not np.any(state.factors[1].natural.precision_mean)


def test_prominence_does_not_apply_to_two_clients():
    method, prior = pt.methods.synchronous(SOLVER), PRIOR
    engine = LocalEngine(PARTS)
    state = init(prior, 3, aggregation=method.aggregation)
    engine.away = lambda names: np.array([False, False, True])
    state, event = step(method, MODEL, engine, state, Rules(admission=Admission(prominence=1e-6)))
    assert not event.refusals


def test_each_client_is_compared_with_the_product_of_all_others():
    """One of the powers is enormous, and the product of the others is exact all the same."""
    powers = [1.0, 2.0, 1e20, 4.0, 8.0]
    for count in range(2, 6):
        others = products_of_others([*(PRIOR**power for power in powers[:count]), PRIOR.one()])
        wanted = [sum(powers[:k] + powers[k + 1 : count]) for k in range(count)]
        assert [float(other.precision[0]) for other in others] == [*wanted, sum(powers[:count])]


class Directionless(pt.MeanFieldGaussian):
    """A family without precisions to compare."""

    def precision_range(self, other):
        return pt.families.Family.precision_range(self, other)


def test_a_family_without_precision_ratios_supports_only_kl_bounds():
    prior, method = Directionless.standard_normal(3), pt.methods.synchronous(SOLVER)
    _, (event,) = answers(method, prior, 1, rules=Rules(admission=Admission(change=1e-9)))
    assert set(event.refusals) == {0, 1, 2}
    with pytest.raises(pt.InputError, match="only the KL bounds"):
        answers(method, prior, 1, rules=Rules(admission=Admission(deficit=0.1)))


@pytest.mark.parametrize("bounds", [{"change": 0.0}, {"dominance": -1.0}, {"deficit": -0.1}, {"change": float("nan")}])
def test_invalid_bounds_are_refused(bounds):
    with pytest.raises(pt.InputError, match="The bound on "):
        Rules(admission=Admission(**bounds)).check(pt.Damped())


@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_of_unseen_factors_do_not_switch_the_bounds_off(family):
    """An attacker's first answer comes before there is anybody to compare it with, and is divided out once there is."""

    def change(reply):
        return eqx.tree_at(lambda r: r.delta.natural.precision_mean, reply, replace_fn=lambda leaf: leaf + 500.0)

    method, prior = pt.methods.sequential(SOLVER, anticipating=True), family.standard_normal(3)
    # bounds that compare: what an answer takes away by itself is judged under any aggregation
    rules = Rules(admission=Admission(change=100.0, dominance=100.0))
    state, events = answers(method, prior, 60, change, rules)
    assert any(1 in event.refusals for event in events)
    assert not np.any(state.factors[1].natural.precision)
    others = pt.methods.sequential(SOLVER)
    never, _ = answers(others, prior, 60, change, rules)
    np.testing.assert_allclose(state.posterior.mean, never.posterior.mean, rtol=1e-8)


@pytest.mark.parametrize("bound", ["change", "dominance", "prominence"])
def test_bounds_unsupported_by_an_aggregation_are_refused_before_the_run(bound):
    rules = Rules(admission=Admission(**{bound: 5.0}))
    stepping = (pt.methods.global_vi(optax.adam), pt.methods.incremental_vi(optax.adam))
    for method in (pt.methods.bayesian_admm(SOLVER), *stepping):
        with pytest.raises(pt.InputError, match="keep every client's own factor"):
            pt.run(method, MODEL, PRIOR, PARTS, rules=rules)
