"""A run goes on from a state: with more rounds, more or fewer clients, or another method."""

import equinox as eqx
import numpy as np
import optax
import pytest

import partita as pt
from partita.io.wire import equal
from support.problems import MODEL, PARTS, PRIOR, SOLVER, STOCHASTIC, assert_product

SILENT = pt.Monitor(every=0)


def run(method, parts=PARTS, **settings):
    return pt.run(method, MODEL, PRIOR, parts, monitor=SILENT, **settings)


@pytest.mark.parametrize("solver", [SOLVER, STOCHASTIC])
def test_a_continued_run_equals_one_longer_run(solver):
    method = pt.methods.synchronous(solver, damping=0.5)
    whole = run(method, rounds=5, tolerance=None)
    first = run(method, rounds=2, tolerance=None)
    second = run(method, rounds=3, tolerance=None, state=first.state)
    assert eqx.tree_equal(second.state.factors, whole.state.factors)
    assert eqx.tree_equal(second.posterior.q, whole.posterior.q)
    assert (second.state.communications, len(second.history)) == (15, 3)


def test_a_continued_converged_run_visits_every_client_before_it_converges():
    method = pt.methods.sequential(SOLVER)
    done = run(method)
    again = run(method, state=done.state)
    assert again.status is pt.Status.CONVERGED
    assert again.state.answers == done.state.answers + 3
    assert again.posterior.q.kl(done.posterior.q) < 1e-6


def test_new_clients_join_a_continued_run():
    method = pt.methods.sequential(SOLVER)
    two = pt.Partition(PARTS.shards[:2], PARTS.names[:2], PARTS.sizes[:2])
    whole, part = run(method, tolerance=1e-12), run(method, two, tolerance=1e-12)
    joined = run(method, PARTS, tolerance=1e-12, state=part.state)
    assert joined.state.names == PARTS.names
    np.testing.assert_allclose(joined.posterior.mean, whole.posterior.mean, rtol=1e-6)


def test_rows_are_matched_to_clients_by_name_and_not_by_position():
    method = pt.methods.sequential(SOLVER)
    reversed_parts = pt.Partition(PARTS.shards[::-1], PARTS.names[::-1], PARTS.sizes[::-1])
    whole = run(method, tolerance=1e-12)
    part = run(method, rounds=1)
    turned = run(method, reversed_parts, tolerance=1e-12, state=part.state)
    assert turned.state.names == PARTS.names
    for factor, other in zip(turned.state.factors, whole.state.factors, strict=True):
        np.testing.assert_allclose(factor.natural.precision, other.natural.precision, rtol=1e-5)


def test_clients_without_rows_become_inactive_and_keep_their_factors():
    method = pt.methods.sequential(SOLVER)
    whole = run(method, rounds=2)
    two = pt.Partition(PARTS.shards[:2], PARTS.names[:2], PARTS.sizes[:2])
    fewer = run(method, two, state=whole.state)
    assert fewer.state.inactive_names == ("client 2",)
    assert equal(fewer.state.factors[2], whole.state.factors[2])
    assert fewer.status is pt.Status.CONVERGED
    assert_product(fewer.state)


@pytest.mark.parametrize(
    "method",
    [pt.methods.synchronous(SOLVER), pt.methods.asynchronous(SOLVER), pt.methods.sequential(SOLVER, anticipating=True)],
)
def test_another_method_can_continue_a_run(method):
    whole = run(pt.methods.sequential(SOLVER), tolerance=1e-12)
    first = run(pt.methods.sequential(SOLVER), rounds=1)
    second = run(method, state=first.state, tolerance=1e-12, rounds=300)
    assert second.status is pt.Status.CONVERGED
    assert second.posterior.q.kl(whole.posterior.q) < 1e-8
    assert_product(second.state)


def test_learning_hyperparameters_can_start_in_a_continued_run():
    first = run(pt.methods.sequential(SOLVER), rounds=2)
    second = run(pt.methods.sequential(SOLVER, learn=["prior_scale"]), state=first.state, rounds=20)
    whole = run(pt.methods.sequential(SOLVER, learn=["prior_scale"]), rounds=40)
    found, expected = (float(result.posterior.hyper["prior_scale"]) for result in (second, whole))
    assert found == pytest.approx(expected, rel=1e-2)
    assert found != 1.0


def test_an_inactive_client_rejoins_when_its_rows_are_given():
    method = pt.methods.sequential(SOLVER)
    two = pt.Partition(PARTS.shards[:2], PARTS.names[:2], PARTS.sizes[:2])
    whole = run(method, tolerance=1e-12)
    away = run(method, two, state=run(method, rounds=1).state)
    back = run(method, state=away.state, tolerance=1e-12)
    assert back.state.active.all()
    np.testing.assert_allclose(back.posterior.mean, whole.posterior.mean, rtol=1e-6)


def test_a_continued_run_uses_the_hyperparameters_of_its_own_learning_rule():
    """q is p · Π t_m under the prior that the run has now: the one given, or that of other hyperparameters."""
    learned = run(pt.methods.sequential(SOLVER, learn=["prior_scale"]), rounds=10)
    assert float(learned.posterior.hyper["prior_scale"]) != 1.0
    plain, whole = (run(pt.methods.sequential(SOLVER), state=s, tolerance=1e-12) for s in (learned.state, None))
    assert_product(plain.state)
    np.testing.assert_allclose(plain.posterior.mean, whole.posterior.mean, rtol=1e-6)
    other = run(pt.methods.sequential(SOLVER, learn=["prior_scale"], how="stochastic"), state=learned.state, rounds=2)
    assert set(other.posterior.hyper) == {"prior_scale"}


def test_the_state_of_another_optimiser_is_refused():
    state = run(pt.methods.global_vi(optax.adam), rounds=1).state
    with pytest.raises(pt.InputError, match="cannot go on"):
        run(pt.methods.global_vi(optax.sgd), state=state)


def test_a_ledger_saves_the_factors_of_the_continued_state(tmp_path):
    method = pt.methods.sequential(SOLVER)
    first = run(method, rounds=1)
    one_more = run(method, state=first.state, store=pt.Ledger(tmp_path / "ledger"), communications=1, tolerance=None)
    again = run(method, store=pt.Ledger(tmp_path / "ledger"), communications=5, tolerance=None)
    straight = run(method, communications=5, tolerance=None)
    assert one_more.state.answers == 4
    assert eqx.tree_equal(again.state.factors, straight.state.factors)


@pytest.mark.parametrize("anticipating", [False, True])
def test_a_ledger_can_be_reopened_with_an_additional_client(anticipating, tmp_path):
    method = pt.methods.sequential(SOLVER, anticipating=anticipating)
    two = pt.Partition(PARTS.shards[:2], PARTS.names[:2], PARTS.sizes[:2])
    run(method, two, store=pt.Ledger(tmp_path / "ledger"), rounds=1, tolerance=None)
    more = run(method, store=pt.Ledger(tmp_path / "ledger"), tolerance=1e-12)
    assert more.state.names == PARTS.names
    assert more.posterior.q.kl(run(method, tolerance=1e-12).posterior.q) < 1e-8


def test_a_timed_out_run_is_saved(tmp_path):
    store, rules = pt.Checkpoint(tmp_path / "run", every=100), pt.Rules(until=2.5)
    result = run(pt.methods.sequential(SOLVER), store=store, rules=rules, tolerance=None)
    assert result.status is pt.Status.TIMED_OUT
    # the budget is what is in the file already
    again = run(pt.methods.sequential(SOLVER), store=store, tolerance=None, communications=2)
    assert result.state.answers == again.state.answers == 2
    assert eqx.tree_equal(again.state.factors, result.state.factors)


def test_a_slow_client_on_a_simulated_clock_does_not_time_out():
    engine = pt.LocalEngine(PARTS, (1.0, 1.0, 1e-5))
    result = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, engine=engine, rounds=4, monitor=SILENT)
    assert result.status is not pt.Status.TIMED_OUT
    assert result.state.answers > 3


def test_an_incompatible_state_is_refused():
    state = run(pt.methods.sequential(SOLVER), rounds=1).state
    with pytest.raises(pt.InputError, match="another prior"):
        pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR**2, PARTS, state=state)
    with pytest.raises(pt.InputError, match="Averaging cannot go on"):
        run(pt.methods.bayesian_admm(SOLVER), state=state)


def test_callbacks_are_called_at_every_step_and_can_stop_a_run():
    seen = []
    monitor = pt.Monitor(every=0, callbacks=(lambda state, row: seen.append((state.turn, row["step"])),))
    pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, rounds=1, monitor=monitor)
    assert seen == [(1, 1), (2, 2), (3, 3)]

    def stop(state, row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, monitor=pt.Monitor(callbacks=(stop,)))


def test_a_result_prints_what_matters():
    result = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS)
    text = repr(result)
    assert "converged" in text
    assert "3 clients" in text
    assert f"free energy {result.free_energy:.6g}" in text
    assert "MeanFieldGaussian of 6 natural parameters" in text


def test_a_history_becomes_a_data_frame():
    pytest.importorskip("polars")
    result = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, rounds=1)
    frame = result.history.to_polars()
    assert frame["communications"].to_list() == [1, 2, 3]
    assert frame["clients"].to_list()[0] == '["client 0"]'
