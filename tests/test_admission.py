"""What an answer must keep to before it counts."""

import re

import equinox as eqx
import numpy as np
import pytest

import partita as pt
from partita.admission import Admission, products_of_others, ratios
from partita.engines import LocalEngine
from partita.objective import Factor
from partita.server import Rules, init, step
from test_pvi import MODEL, PARTS, PRIOR, SOLVER

STRICT = Admission(change=100.0, dominance=100.0, deficit=0.05)
FAMILIES = [pt.MeanFieldGaussian, pt.FullGaussian]


def answers(method, prior, rounds, change=None, rules=None):
    """The state after some rounds in which client 1's answers are changed, and the events on the way."""
    engine, state, events = LocalEngine(PARTS), init(prior, 3), []
    honest = engine.answer
    if change is not None:
        engine.answer = lambda task, recipe: (change if task.client == 1 else lambda r: r)(honest(task, recipe))
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
def test_a_flipped_or_inflated_first_answer_is_refused_and_leaves_the_posterior_to_the_others(family, power, reason):
    def change(reply):
        return eqx.tree_at(lambda r: r.delta, reply, reply.delta**power)

    method, prior = pt.methods.synchronous(SOLVER), family.standard_normal(3)
    state, (event,) = answers(method, prior, 1, change)
    assert list(event.refusals) == [1]
    assert not np.any(state.factors[1].natural.precision)
    assert re.search(reason, event.refusals[1])
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
    one, two = pt.Product(a=part**2.0, b=part**-0.5), pt.Product(a=part, b=part)
    assert tuple(map(float, one.precision_range(two))) == (-0.5, 2.0)


def test_the_first_answers_are_compared_with_each_other():
    """Against the prior alone an honest first answer looks enormous; beside as much evidence of others it does not."""
    delta = Factor(PRIOR**50.0, np.zeros(()))
    alone = ratios(PRIOR, Factor.one(PRIOR), delta, None)[1]
    beside = ratios(PRIOR, Factor.one(PRIOR), delta, PRIOR**99.0)[1]
    assert (float(alone), float(beside)) == (50.0, 0.5)


def test_everybody_is_compared_with_all_others_and_not_with_itself():
    """One of the powers is enormous, and the product of the others is exact all the same."""
    powers = [1.0, 2.0, 1e20, 4.0, 8.0]
    for count in range(2, 6):
        others = products_of_others([PRIOR**power for power in powers[:count]])
        wanted = [sum(powers[:k] + powers[k + 1 : count]) for k in range(count)]
        assert [float(other.precision[0]) for other in others] == wanted
    assert products_of_others([PRIOR]) == [None]
    assert products_of_others([]) == []


class Directionless(pt.MeanFieldGaussian):
    """A family without precisions to compare."""

    def precision_range(self, other):
        return pt.families.Family.precision_range(self, other)


def test_a_family_without_directions_can_be_bounded_by_the_divergence_alone():
    prior, method = Directionless.standard_normal(3), pt.methods.synchronous(SOLVER)
    _, (event,) = answers(method, prior, 1, rules=Rules(admission=Admission(change=1e-9)))
    assert set(event.refusals) == {0, 1, 2}
    with pytest.raises(pt.InputError, match="by KL alone"):
        answers(method, prior, 1, rules=Rules(admission=Admission(deficit=0.1)))


@pytest.mark.parametrize("bounds", [{"change": 0.0}, {"dominance": -1.0}, {"deficit": -0.1}, {"change": float("nan")}])
def test_bounds_that_make_no_sense_are_told(bounds):
    with pytest.raises(pt.InputError, match="Bounds on answers"):
        Rules(admission=Admission(**bounds)).check()
