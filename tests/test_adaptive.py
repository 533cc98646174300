"""Damping that follows the free energy which clients report."""

import equinox as eqx
import jax
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine, local
from partita.families.factor import Factor
from partita.server.aggregation import FreeEnergy, Report
from partita.server.bound import global_free_energy
from partita.server.refusal import Reason
from partita.server.state import init
from partita.server.step import step
from support.problems import FULL, MODEL, PARTS, PRIOR, SOLVER, assert_product, correlated

ADAPTIVE = pt.Adaptive()
QUIET = pt.Monitor(progress=False)


def change(precision):
    """The change of a factor that adds this much to each of three precisions."""
    return Factor(pt.MeanFieldGaussian(np.full(3, precision / 2), np.full(3, precision)), np.zeros(()))


def reported(iterate, *ells, variance=0.0):
    """What clients say of the present posterior; nobody can be asked."""
    said = {k: Report(ell, variance, iterate.posterior) for k, ell in enumerate(ells)}
    return FreeEnergy(lambda q: pytest.fail("asked"), PRIOR, 1.0, said, np.zeros(len(said), bool))


def rounds(*ells, precision=1.0, variance=0.0):
    """What becomes of rounds of two clients that change their factors by so much and report these numbers."""
    iterate, taken = ADAPTIVE.init(PRIOR, 2), []
    for ell in ells:
        deltas = {0: change(precision), 1: change(2 * precision)}
        taken.append(ADAPTIVE.update(iterate, deltas, reported(iterate, ell, ell, variance=variance)))
        iterate = taken[-1].iterate
    return taken


def precisions(taken):
    return [float(taken.iterate.factors[k].natural.precision[0]) for k in (0, 1)]


def test_a_round_in_which_the_free_energy_rises_is_where_the_next_begins():
    first, second = rounds(-100.0, -50.0)
    assert (first.damping, second.damping) == (0.5, 0.75)
    assert precisions(first) == [0.5, 1.0]
    before = np.array([0.5, 1.0])
    np.testing.assert_allclose(precisions(second), before + (1 - np.sqrt(0.75)) * before + 0.75 * np.array([1.0, 2.0]))


def test_what_is_asked_for_again_gets_momentum():
    *_, second, third, fourth = rounds(-100.0, -50.0, -40.0, -30.0)
    # the same changes were asked for again: all of the last movement, times 1/4 in the third round, with damping 1
    np.testing.assert_allclose(
        moved(second, third), 0.25 * moved(None, second, rounds(-100.0)[-1]) + [1, 2], rtol=1e-12
    )
    np.testing.assert_allclose(moved(third, fourth), 0.4 * moved(second, third) + [1, 2], rtol=1e-12)


def moved(before, after, first=None):
    """By how much the precisions of the factors have changed."""
    return np.array(precisions(after)) - precisions(first if before is None else before)


@pytest.mark.parametrize(("part", "growth"), [(0.1, 1 / 0.9), (0.0, 1.0), (-0.25, 0.8), (-1.5, 0.5), (0.9, 1.5)])
def test_damping_goes_where_the_last_two_rounds_meet(part, growth):
    """Of a change of which a part is asked for again nothing would be left after the step of 1/(1 − part) of it."""
    (first,) = rounds(-100.0)
    deltas = {0: change(part), 1: change(2 * part)}
    second = ADAPTIVE.update(first.iterate, deltas, reported(first.iterate, -50.0, -50.0))
    np.testing.assert_allclose(second.damping, 0.5 * growth, rtol=1e-9)


@pytest.mark.parametrize(("part", "shrinkage"), [(0.5, 0.5), (-1.0, 0.5), (-3.0, 0.25), (-99.0, 0.125)])
def test_after_a_fall_damping_goes_there_too(part, shrinkage):
    (first,) = rounds(-100.0)
    deltas = {0: change(part), 1: change(2 * part)}
    second = ADAPTIVE.update(first.iterate, deltas, reported(first.iterate, -200.0, -200.0))
    assert second.returned
    np.testing.assert_allclose(second.damping, 0.5 * shrinkage, rtol=1e-9)


def test_momentum_does_not_count_as_damping():
    """The precisions of two factors have their optimum at 3 and 6: whole answers fit, whatever was added."""
    iterate, best = ADAPTIVE.init(PRIOR, 2), np.array([3.0, 6.0])
    for value in range(-100, -94):
        left = best - [float(iterate.factors[k].natural.precision[0]) for k in (0, 1)]
        taken = ADAPTIVE.update(iterate, dict(enumerate(map(change, left))), reported(iterate, value, value))
        iterate = taken.iterate
    assert taken.damping == 1.0
    np.testing.assert_allclose(precisions(taken), best, rtol=1e-12)


def test_after_a_fall_the_step_before_is_taken_again_with_half_the_damping():
    _, second = rounds(-100.0, -200.0)
    assert (second.damping, second.returned, second.refusals) == (0.25, True, {})
    assert precisions(second) == [0.25, 0.5]
    # and what failed is not tried again soon
    later = rounds(-100.0, -200.0, -50.0, -40.0, -30.0)
    assert [taken.damping for taken in later[2:]] == pytest.approx([0.3675, 0.385875, 0.40516875])
    assert not any(taken.returned for taken in later[2:])


def test_noise_is_no_fall():
    assert not rounds(-100.0, -101.0, variance=1.0)[-1].returned
    assert rounds(-100.0, -110.0, variance=1.0)[-1].returned


def test_a_free_energy_that_is_not_finite_has_fallen():
    assert rounds(-100.0, -np.inf)[-1].returned
    assert not rounds(-np.inf, -np.inf)[-1].returned


def test_a_report_with_a_first_answer_that_is_refused_is_not_taken_for_that_of_another_client():
    iterate = ADAPTIVE.init(PRIOR, 3)
    said = {k: Report(-10.0, 0.0, iterate.posterior) for k in range(3)}
    known = FreeEnergy(lambda q: pytest.fail("asked"), PRIOR, 1.0, said, np.zeros(3, bool))
    one = ADAPTIVE.update(iterate, {0: change(1.0), 1: change(1.0)}, known).iterate.memory.reports
    heard = [known._replace(reported={k: said[k]._replace(ell=-10.0 - 90 * k) for k in who}) for who in [(0,), (0, 2)]]
    values = [one.free_energy(iterate.posterior, each) for each in heard]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-12)


def test_answers_none_of_which_is_finite_are_a_fall():
    began = ADAPTIVE.init(PRIOR, 2)
    assert not ADAPTIVE.lost(began, PRIOR).returned  # nothing is known to go back to
    first, second = rounds(-100.0, -50.0)
    back = ADAPTIVE.lost(second.iterate, PRIOR)
    assert back.returned
    assert 0 < back.damping < second.damping / 2
    # it is a shorter step from where the second one began
    held = np.array(precisions(first))
    np.testing.assert_allclose(precisions(back), held + back.damping * np.array([1.0, 2.0]), rtol=1e-12)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_run_goes_back_where_no_answer_is_finite_and_not_where_one_is_missing(lost, monkeypatch):
    asked, update = [], local.client_update

    def overflowing(*arguments):
        reply = update(*arguments)
        asked.append(0)
        beyond = len(PARTS) < len(asked) <= len(PARTS) + lost  # of the second round
        return eqx.tree_at(lambda one: one.info.finite, reply, np.asarray(False)) if beyond else reply

    monkeypatch.setattr(local, "client_update", overflowing)
    result = pt.run(pt.methods.synchronous(SOLVER), MODEL, PRIOR, PARTS, tolerance=1e-8, monitor=QUIET)
    assert len(result.history.refusals) == lost
    assert result.history["returned"][:3].tolist() == [False, lost == 3, False]
    assert result.status is pt.Status.CONVERGED
    assert_product(result.state)


def test_what_an_invalid_answer_reports_is_no_free_energy(monkeypatch):
    asked, update = [], local.client_update

    def boasting(*arguments):
        reply = update(*arguments)
        asked.append(0)
        if len(asked) != 3 * len(PARTS) + 1:  # of the fourth round, when no report is a first one any more
            return reply
        return eqx.tree_at(lambda one: (one.info.finite, one.info.ell), reply, (np.asarray(False), np.asarray(1e9)))

    monkeypatch.setattr(local, "client_update", boasting)
    result = pt.run(pt.methods.synchronous(SOLVER), MODEL, PRIOR, PARTS, tolerance=1e-8, monitor=QUIET)
    assert len(result.history.refusals) == 1
    assert not any(result.history["returned"])


def test_a_step_that_is_far_too_long_is_shortened():
    """What is 1e12 times as precise as the prior is followed to 1e4 of it, a natural parameter; the rest can wait."""
    (taken,) = rounds(-100.0, precision=1e12)
    added = np.array(precisions(taken))
    np.testing.assert_allclose(added[1] / added[0], 2.0, rtol=1e-12)
    assert 1e4 < added.sum() < 1e5
    assert taken.damping < 1e-7
    (usual,) = rounds(-100.0, precision=1e3)
    assert usual.damping == 0.5


def test_the_posterior_is_the_product_anew_after_factors_that_were_enormous():
    iterate = ADAPTIVE.init(PRIOR, 2)
    for precision in (3e4, 1e9 / 7, -1e9 / 7):
        free_energy = reported(iterate, -50.0, -50.0)
        iterate = ADAPTIVE.update(iterate, {0: change(precision), 1: change(precision / 3)}, free_energy).iterate
    product = PRIOR
    for factor in iterate.factors:
        product = product * factor.natural
    for found, expected in zip(jax.tree.leaves(iterate.posterior), jax.tree.leaves(product), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_a_run_that_falls_at_every_damping_ends_where_it_was_verified():
    # every fourth time the verified posterior itself is sent again, and counts as what it is worth now
    falls = [-200.0, -200.0, -200.0, -200.0, -100.0]
    taken = rounds(-100.0, *falls, *falls, *falls, -200.0)
    assert [precisions(taken[place]) for place in (4, 9, 14)] == [[0.0, 0.0]] * 3
    assert {refusal.reason for refusal in taken[-1].refusals.values()} == {Reason.LOWER_FREE_ENERGY}
    assert eqx.tree_equal(taken[-1].iterate.posterior, PRIOR)


def test_a_run_ends_at_what_is_verified_unless_the_newest_is_known_to_be_higher():
    iterate = rounds(-100.0, -50.0)[-1].iterate
    verified = iterate.memory.verified
    assert ADAPTIVE.final(iterate, None).posterior is verified.posterior
    known = float(verified.at_least)
    for said, expected in ((known - 1, verified.posterior), (known + 1, iterate.posterior)):
        free_energy = FreeEnergy(lambda q, said=said: said, PRIOR, 1.0, {}, np.zeros(2, bool))
        assert ADAPTIVE.final(iterate, free_energy).posterior is expected


@pytest.mark.parametrize(
    "schedule", [pt.Asynchronous(), pt.schedules.RandomSubset(2)], ids=lambda one: type(one).__name__
)
def test_stale_reports_of_a_conjugate_model_give_the_free_energy_exactly(schedule):
    """There ell_k(q) is linear in the mean parameters, with the client's factor as its gradient."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(40, 3))
    data = pt.Table(x, x @ [1.0, -1.0, 0.5] + generator.normal(size=40))
    parts = pt.split(data, pt.partitioners.equal_random(40, 4))
    model, engine = pt.LinearRegression(), LocalEngine(parts, (1.0, 7.0, 3.0, 2.0))
    method = pt.Method(pt.Conjugate(), schedule, ADAPTIVE)
    engine.bind(method.recipe(model), FULL)
    state = init(FULL, 4, aggregation=ADAPTIVE)
    for _ in range(32):
        before = state
        state, _ = step(method, model, engine, state)
        assert_product(state)
    reports = state.memory.reports
    assert 0 < reports.rows.summed().error < 1e-9
    assert not reports.rows.summed().first
    climbed = FreeEnergy(lambda q: np.nan, FULL, 1.0, {}, np.zeros(4, bool))
    value, error = reports.free_energy(before.posterior, climbed)
    exact = global_free_energy(engine, state, FULL, before.posterior)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    assert error < 1e-9


def test_an_answer_to_a_factor_that_went_back_gives_the_factor_it_meant():
    method = pt.Method(SOLVER, pt.Asynchronous(), ADAPTIVE)
    engine = LocalEngine(PARTS)
    engine.bind(method.recipe(MODEL), PRIOR)
    state = init(PRIOR, 3, aggregation=ADAPTIVE)
    for _ in range(4):
        state, _ = step(method, MODEL, engine, state)
    waiting = state.in_flight[0].client
    other = state.with_iterate(state.iterate._replace(factors=state.factors.replaced({waiting: Factor.one(PRIOR)})))
    meant = []
    for each in (state, other):
        fresh = LocalEngine(PARTS)
        fresh.bind(method.recipe(MODEL), PRIOR)
        while each.versions[waiting] == state.versions[waiting]:
            each, _ = step(method, MODEL, fresh, each)
        meant.append(each.memory.reports.rows[waiting].answer.natural)
    for first, second in zip(*map(jax.tree.leaves, meant), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-9)


def product(prior, factors):
    """The precision of p · Π t_k."""
    return np.asarray(prior.precision) + factors.summed().natural.precision


@pytest.mark.parametrize(
    "method", [pt.methods.asynchronous(SOLVER), pt.Method(SOLVER, pt.schedules.RandomSubset(2), ADAPTIVE)]
)
def test_what_is_verified_and_what_is_returned_is_the_product_of_its_factors(method):
    result = pt.run(method, MODEL, PRIOR, engine=LocalEngine(PARTS, (1.0, 5.0, 2.0)), rounds=4, monitor=QUIET)
    assert_product(result.state)
    verified = result.state.memory.verified
    np.testing.assert_allclose(verified.posterior.precision, product(PRIOR, verified.factors), rtol=1e-12)


def test_the_guard_works_on_when_a_client_has_left():
    model, prior, parts = correlated()
    method = pt.methods.synchronous(pt.solvers.FixedPoint())
    one = pt.run(method, model, prior, parts, rounds=1, tolerance=None, monitor=QUIET).state
    left, kept = parts.without("client 5"), one.factors[5]
    result = pt.run(method, model, prior, left, rounds=60, state=one, tolerance=1e-8, monitor=QUIET)
    assert result.status is pt.Status.CONVERGED
    assert eqx.tree_equal(jax.tree.map(np.asarray, result.state.factors[5]), jax.tree.map(np.asarray, kept))


def test_a_run_that_goes_on_with_other_rows_forgets_what_was_reported():
    first = pt.run(pt.methods.synchronous(), MODEL, FULL, PARTS, rounds=6, monitor=QUIET)
    more = [jax.tree.map(lambda leaf: np.concatenate([np.asarray(leaf)] * 3), shard.data) for shard in PARTS.shards]
    other = pt.federate(
        [pt.Table(table.x[:size], table.y[:size]) for table, size in zip(more, (60, 60, 60), strict=True)]
    )
    result = pt.run(pt.methods.synchronous(), MODEL, FULL, other, rounds=1, state=first.state, monitor=QUIET)
    assert not any(result.history["returned"])
    assert result.posterior.q.kl(first.posterior.q) > 1e-3


def test_it_converges_where_undamped_rounds_diverge_and_never_falls():
    model, prior, parts = correlated()
    method = pt.methods.synchronous(pt.solvers.FixedPoint())
    result = pt.run(method, model, prior, parts, tolerance=1e-8, monitor=QUIET)
    assert result.status is pt.Status.CONVERGED
    # what is asked for turns round before the free energy falls
    assert not any(result.history["returned"])
    pooled = pt.run(pt.methods.sequential(pt.solvers.FixedPoint()), model, prior, parts.pooled(), monitor=QUIET)
    np.testing.assert_allclose(result.free_energy, pooled.free_energy, rtol=1e-7)
    assert np.diff(result.history["free_energy"]).min() > -1e-6


def test_a_run_cut_short_is_never_lower_than_before():
    model, prior, parts = correlated()
    method = pt.methods.synchronous(pt.solvers.FixedPoint())
    ends = [
        pt.run(method, model, prior, parts, rounds=count, tolerance=None, monitor=QUIET).free_energy
        for count in range(1, 9)
    ]
    assert np.diff(ends).min() >= -1e-9


def test_the_last_question_is_a_communication_per_client():
    spent = pt.run(pt.methods.synchronous(SOLVER), MODEL, PRIOR, PARTS, rounds=2, tolerance=None, monitor=QUIET)
    assert spent.state.communications == 9
    fixed = pt.run(pt.methods.synchronous(SOLVER, 0.5), MODEL, PRIOR, PARTS, rounds=2, tolerance=None, monitor=QUIET)
    assert fixed.state.communications == 6


def test_power_ep_has_no_free_energy_to_follow():
    assert pt.methods.synchronous(pt.solvers.PowerEP()).aggregation == pt.Damped(None)
    with pytest.raises(pt.InputError, match="Damped"):
        pt.run(pt.Method(pt.solvers.PowerEP(), pt.Synchronous(), ADAPTIVE), MODEL, FULL, PARTS)


def test_one_client_needs_one_round():
    result = pt.run(pt.methods.synchronous(), MODEL, FULL, PARTS.pooled(), rounds=1, monitor=QUIET)
    alone = pt.run(pt.methods.sequential(), MODEL, FULL, PARTS.pooled(), rounds=1, monitor=QUIET)
    np.testing.assert_allclose(result.free_energy, alone.free_energy, rtol=1e-12)


@pytest.mark.parametrize("store", [pt.Checkpoint, pt.Ledger])
def test_a_resumed_run_is_the_one_that_was_not_interrupted(store, tmp_path):
    settings = {"tolerance": None, "monitor": pt.Monitor(every=0, progress=False)}
    method = pt.methods.synchronous(SOLVER)
    whole = pt.run(method, MODEL, PRIOR, PARTS, rounds=6, **settings)
    path = tmp_path / "run"
    for rounds_so_far in (2, 6):
        parts = pt.run(method, MODEL, PRIOR, PARTS, rounds=rounds_so_far, store=store(path), **settings)
    # a run that ends is at a verified posterior, from where the one that goes on begins
    np.testing.assert_allclose(parts.posterior.mean, whole.posterior.mean, rtol=1e-6)
    interrupted = []

    def stop(state, row):
        if len(interrupted) < 1 and row["rounds"] == 3:
            interrupted.append(row)
            raise KeyboardInterrupt

    path = tmp_path / "interrupted"
    watched = {**settings, "monitor": pt.Monitor(every=0, progress=False, callbacks=(stop,))}
    with pytest.raises(KeyboardInterrupt):
        pt.run(method, MODEL, PRIOR, PARTS, rounds=6, store=store(path), **watched)
    resumed = pt.run(method, MODEL, PRIOR, PARTS, rounds=6, store=store(path), **watched)
    # a ledger multiplies the posterior from its factors again, which rounds otherwise, and damping follows the answers
    np.testing.assert_allclose(resumed.posterior.mean, whole.posterior.mean, rtol=1e-12)
    rounding = 1e-9 if store is pt.Ledger else 0.0
    np.testing.assert_allclose(resumed.history["damping"], whole.history["damping"], rtol=rounding)


def test_a_ledger_keeps_what_is_remembered_of_a_client_that_joined(tmp_path):
    method, settings = pt.methods.synchronous(SOLVER), {"tolerance": None, "monitor": QUIET}
    first = pt.run(method, MODEL, PRIOR, PARTS.only("client 0"), rounds=2, **settings)
    grown = pt.run(
        method, MODEL, PRIOR, PARTS, rounds=2, state=first.state, store=pt.Ledger(tmp_path / "run"), **settings
    )
    kept, _ = pt.Ledger(tmp_path / "run").load(first.state)
    assert eqx.tree_equal(kept.memory.verified.posterior, grown.state.memory.verified.posterior)
    assert len(kept.memory.reports.rows) == 3
