"""How large is an answer? Three measures beside independent computations, and what residual order makes of them."""

import dataclasses

import jax
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.local.client import Reply
from partita.server.measures import Divergence, Measure, NaturalNorm, PredictiveChange
from partita.server.state import init
from support.problems import MODEL, PARTS, PRIOR, SOLVER
from support.steps import step

X = np.asarray(PARTS.shards[0].data.x)[:5]


@pytest.fixture(scope="module")
def visits():
    """Posteriors that were sent, with the replies: those of two passes."""
    engine, state, found = LocalEngine(PARTS), init(PRIOR, 3), []
    for _ in range(6):
        sent = state.posterior
        state, event = step(pt.methods.sequential(SOLVER), MODEL, engine, state)
        found.append((sent, event.replies[event.clients[0]]))
    return found


def leaves(member):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(member)])


def test_the_divergence_is_that_of_answer_and_posterior(visits):
    for sent, reply in visits:
        assert Divergence().size(sent, reply) == pytest.approx(float((sent * reply.delta.natural).kl(sent)), rel=1e-6)


def test_the_norm_is_that_of_the_change_of_natural_parameters(visits):
    for sent, reply in visits:
        asked = leaves(sent * reply.delta.natural) - leaves(sent)
        assert NaturalNorm().size(sent, reply) == pytest.approx(np.linalg.norm(asked), rel=1e-9)


def test_the_predictive_change_is_the_mean_distance_of_predictions(visits):
    measure = PredictiveChange(MODEL, X)
    for sent, reply in visits:
        before, after = (pt.Posterior(MODEL, q).predict(X) for q in (sent, sent * reply.delta.natural))
        assert measure.size(sent, reply) == pytest.approx(np.abs(after - before).mean(), rel=1e-12)


def test_only_the_predictive_change_ignores_what_no_prediction_depends_on(visits):
    """A change of a parameter whose input is always 0."""
    sent, reply = visits[0]
    blind = X.copy()
    blind[:, 0] = 0.0
    only = dataclasses.replace(sent, precision_mean=np.array([3.0, *[0.0] * (len(leaves(sent)) // 2 - 1)]))
    only = dataclasses.replace(only, precision=jax.numpy.zeros_like(only.precision))
    changed = Reply(dataclasses.replace(reply.delta, natural=only), reply.info)
    assert NaturalNorm().size(sent, changed) == pytest.approx(3.0)
    assert PredictiveChange(MODEL, X).size(sent, changed) > 0.01
    assert PredictiveChange(MODEL, blind).size(sent, changed) == pytest.approx(0.0, abs=1e-12)


class OfThird(Measure):
    """Only the third client's answers have a size."""

    third: pt.Family

    def size(self, sent, reply):
        return 1.0 if all(map(np.array_equal, *map(jax.tree.leaves, (reply.delta.natural, self.third)))) else 0.0


def test_residual_order_goes_by_its_measure(visits):
    """After the first pass the client comes whose answer was the largest, whatever its divergence was."""
    measure = OfThird(visits[2][1].delta.natural)
    method, engine, state = (
        pt.methods.sequential(SOLVER, "residual", measure=measure),
        LocalEngine(PARTS),
        init(PRIOR, 3),
    )
    order = []
    for _ in range(4):
        state, event = step(method, MODEL, engine, state)
        order.append(event.clients[0])
    assert order == [0, 1, 2, 2]
    assert np.argmax(state.residual) != 2
