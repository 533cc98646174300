"""Hyperparameters: gradients that clients report, three ways of learning, and what is always true meanwhile."""

import dataclasses
import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.linear_model import BayesianRidge

import partita as pt
from partita.engines import LocalEngine
from partita.families.factor import Factor
from partita.hyper.learning import Ascent, LearningView, Stochastic
from partita.hyper.values import begin, bound_gradient, constrained, model_given, positive, prior_given, unconstrained
from partita.local.client import answer
from partita.local.objective import Problem
from partita.local.solvers import NaturalGradient
from partita.results.history import History
from partita.server.aggregation import Anticipating, Averaging, DoubleLoop, Incremental, ServerOptimiser, Shared
from partita.server.learn import unmoved
from partita.server.membership import join, leave
from partita.server.monitor import Monitor
from partita.server.state import init, with_learning
from partita.storage.checkpoint import Checkpoint, load, save
from support.steps import step

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(200, 4)) @ np.diag([1.0, 2.0, 0.5, 1.0])
Y = X @ np.array([1.0, -0.7, 2.5, 0.0]) + 0.7 * GENERATOR.normal(size=200)
LABELS = (GENERATOR.random(200) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.7, 1.5, 0.0])))).astype(float)
PRIOR = pt.FullGaussian.standard_normal(4)
LINEAR, LOGISTIC = pt.LinearRegression(1.0), pt.LogisticRegression()
WAYS = ("coordinate", "collapsed", "stochastic")
KEY = jax.random.key(0)


def clients(y, count=10):
    parts = zip(np.array_split(X, count), np.array_split(y, count), strict=True)
    return pt.federate([pt.Table(*part) for part in parts])


NUMBERS, CLASSES = clients(Y), clients(LABELS)


def bound(model, prior, y, q, hyper):
    """F(ε, q) of all rows, as it is written down."""
    ell = model_given(model, hyper).ell(q, pt.Table(jnp.asarray(X), jnp.asarray(y)), jnp.ones(len(y)), KEY)
    return ell - q.kl(prior_given(prior, hyper))


@functools.cache
def optimum():
    """The evidence's maximum by scikit-learn, without priors on the precisions."""
    flat = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    return BayesianRidge(fit_intercept=False, tol=1e-14, max_iter=10_000, compute_score=True, **flat).fit(X, Y)


def learned(how, names, model=LINEAR, parts=NUMBERS, prior=PRIOR, name="sequential", **options):
    settings = {"solver": pt.Conjugate()} if isinstance(model, pt.LinearRegression) else {}
    options = {"tolerance": 1e-13, "rounds": 300, "monitor": Monitor(every=10)} | options
    return pt.methods.fit(name, model, prior, parts, settings, learn=names, how=how, **options)


@pytest.mark.parametrize("how", WAYS)
def test_linear_regression_in_ten_clients_reaches_the_maximum_of_the_evidence(how):
    found = learned(how, ["noise", "prior_scale"])
    assert found.status is pt.Status.CONVERGED
    expected = [optimum().alpha_ ** -0.5, optimum().lambda_ ** -0.5]
    np.testing.assert_allclose(list(found.posterior.hyper.values()), expected, rtol=1e-6)
    assert found.free_energy == pytest.approx(optimum().scores_[-1], abs=1e-6)
    np.testing.assert_allclose(found.posterior.mean, optimum().coef_, rtol=1e-6)
    assert found.posterior.model.noise == found.posterior.hyper["noise"]


@pytest.mark.parametrize("times", [0.1, 10.0])
def test_stochastic_learning_converges_from_a_tenth_and_from_ten_times_the_optimum(times):
    """From below the gradient of a noise begins a hundred times as steep as from above."""
    noise, scale = optimum().alpha_ ** -0.5, optimum().lambda_ ** -0.5
    prior = pt.FullGaussian.standard_normal(4, times * scale)
    model = pt.LinearRegression(times * noise)
    found = learned("stochastic", ["noise", "prior_scale"], model, prior=prior, rounds=100)
    np.testing.assert_allclose(list(found.posterior.hyper.values()), [noise, 1 / times], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("synchronous", "collapsed"),
        ("asynchronous", "coordinate"),
        ("asynchronous", "stochastic"),
        *(
            pytest.param(name, how, marks=pytest.mark.slow)
            for name, how in (
                ("synchronous", "coordinate"),
                ("synchronous", "stochastic"),
                ("asynchronous", "collapsed"),
            )
        ),
    ],
)
def test_every_schedule_converges_to_the_same_hyperparameters(name, how):
    """Three clients, whose gradients are of different ages."""
    method = pt.methods.named(name, solver=pt.Conjugate(), damping=0.5, learn=["noise", "prior_scale"], how=how)
    speeds = [1.0, 1.3, 1.7] if name == "asynchronous" else None
    options = {"tolerance": 1e-8, "rounds": 400, "monitor": Monitor(every=0)}
    found = pt.run(method, LINEAR, PRIOR, engine=LocalEngine(clients(Y, 3), speeds), **options)
    assert found.status is pt.Status.CONVERGED
    expected = [optimum().alpha_ ** -0.5, optimum().lambda_ ** -0.5]
    np.testing.assert_allclose(list(found.posterior.hyper.values()), expected, rtol=1e-4)


def test_a_client_that_left_still_counts_through_its_factor():
    """Its factor of a conjugate model is its likelihood: the optimum is the same with it and without."""
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["prior_scale"])
    parts, engine = clients(Y, 3), LocalEngine(clients(Y, 3))
    state = with_learning(init(PRIOR, parts.names), method.learning, LINEAR)
    for turn in range(60):
        state, _ = step(
            method,
            LINEAR,
            engine,
            leave(state, "client 2", method.aggregation) if turn == 3 else state,
            tolerance=1e-10,
        )
    whole = learned("collapsed", ["prior_scale"], parts=parts, tolerance=1e-10)
    assert float(state.hyper["prior_scale"]) == pytest.approx(float(whole.posterior.hyper["prior_scale"]), rel=1e-5)
    assert state.settled(1e-10)


class Silent(LocalEngine):
    """Clients of whom one does not say how likely its rows are, until it is asked again."""

    asked = 0

    def ell(self, *arguments):
        self.asked += 1
        return np.nan if self.asked < 4 else super().ell(*arguments)


def test_an_unavailable_bound_skips_the_hyperparameter_step_and_the_run_continues():
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["noise"])
    engine = Silent(clients(Y, 3))
    options = {"tolerance": 1e-8, "rounds": 100, "monitor": Monitor(every=0)}
    found = pt.run(method, LINEAR, PRIOR, engine=engine, **options)
    assert found.status is pt.Status.CONVERGED
    exact = learned("collapsed", ["noise"], parts=clients(Y, 3), tolerance=1e-8)
    assert float(found.posterior.hyper["noise"]) == pytest.approx(float(exact.posterior.hyper["noise"]), rel=1e-5)


class Liar(LocalEngine):
    """The second client's answers are no numbers, and its gradients are."""

    def answer(self, task):
        reply = super().answer(task)
        if task.client != 1:
            return reply
        return eqx.tree_at(
            lambda r: (r.info.finite, r.gradient["noise"]), reply, (jnp.asarray(False), jnp.asarray(1e9))
        )


def test_the_gradient_of_a_refused_answer_does_not_count():
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["noise"], how="stochastic")
    state = with_learning(init(PRIOR, 3, aggregation=method.aggregation), method.learning, LINEAR)
    engine = Liar(clients(Y, 3))
    for _ in range(6):
        state, _ = step(method, LINEAR, engine, state)
    assert np.isnan(state.gradients["noise"]).tolist() == [False, True, False]
    assert float(state.hyper["noise"]) == 1.0


def test_in_single_precision_the_posterior_stays_prior_times_factors():
    """Quotients of wide and narrow priors would lose what the factors say."""
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), pt.FullGaussian.standard_normal(4, 1e-3))
    rows = zip(np.split(np.float32(X), 4), np.split(np.float32(Y), 4), strict=True)
    parts = pt.federate([pt.Table(*part) for part in rows])
    model = pt.LinearRegression(jnp.float32(1.0))
    options = {"tolerance": 1e-4, "rounds": 40, "monitor": Monitor(every=0)}
    state = pt.methods.fit("sequential", model, single, parts, learn=["prior_scale"], **options).state
    whole = functools.reduce(operator.mul, (factor.natural for factor in state.factors), state.current_prior)
    assert float(state.hyper["prior_scale"]) > 10
    np.testing.assert_allclose(whole.precision, state.posterior.precision, rtol=1e-5, atol=1e-4)


def test_initial_hyperparameters_reproduce_a_prior_with_nonzero_mean():
    prior = pt.FullGaussian.from_mean_covariance(jnp.array([1.3, 0.2, -0.7, 2.1]), np.eye(4) + 0.3)
    hyper = begin(LOGISTIC, prior, ["prior_scale"])
    assert eqx.tree_equal(jax.jit(prior_given)(prior, hyper), prior)


def pooled_bound(scale):
    """max_q F(ε, q) on all rows."""
    prior = prior_given(PRIOR, {"prior_scale": jnp.asarray(scale)})
    shard, one = CLASSES.pooled().shards[0], jnp.asarray(1.0)
    return solve(Problem(LOGISTIC, shard, Factor.of(prior), one, prior, one)).free_energy


@jax.jit
def solve(problem):
    return pt.Newton().solve(problem, KEY)


def test_the_prior_scale_of_logistic_regression_is_the_best_of_a_grid():
    """To 1e-3, the spacing of the last of three grids, each around the best of the one before."""
    best = 2.0
    for spacing in (1e-1, 1e-2, 1e-3):
        grid = best + np.arange(-15, 16) * spacing
        best = grid[np.argmax([pooled_bound(scale) for scale in grid])]
    found = learned("collapsed", ["prior_scale"], LOGISTIC, CLASSES, tolerance=1e-10)
    assert float(found.posterior.hyper["prior_scale"]) == pytest.approx(best, abs=1e-3)


@pytest.mark.slow
def test_learning_the_links_slope_is_equivalent_to_learning_the_prior_scale():
    """p(y | s·xᵀθ) under N(0, 1) is p(y | xᵀθ) under N(0, s²)."""
    scale, slope = (
        learned("collapsed", [name], LOGISTIC, CLASSES, tolerance=1e-11) for name in ("prior_scale", "slope")
    )
    assert float(slope.posterior.hyper["slope"]) == pytest.approx(float(scale.posterior.hyper["prior_scale"]), rel=1e-5)
    assert slope.free_energy == pytest.approx(scale.free_energy, abs=1e-8)
    np.testing.assert_allclose(slope.posterior.predict(X[:5]), scale.posterior.predict(X[:5]), rtol=1e-5)


class Watched(Ascent):
    """Notes the bound before and after each of its steps."""

    seen: list = eqx.field(static=True, kw_only=True)

    def update(self, view, memory):
        moved = super().update(view, memory)
        if moved.trials:
            self.seen.append((view.bound(view.u), view.bound(moved.u)))
        return moved


@pytest.mark.parametrize("collapsed", [False, True], ids=["coordinate", "collapsed"])
@pytest.mark.parametrize("names", [["noise", "prior_scales"], ["prior_scale"]], ids=["linear", "logistic"])
def test_learning_never_lowers_the_bound(collapsed, names):
    """Nor does PVI from one settled point to the next; on its way from a step to a settled point it may."""
    model, parts = (LINEAR, NUMBERS) if "noise" in names else (LOGISTIC, CLASSES)
    seen: list[tuple[float, float]] = []
    method = pt.methods.named("sequential", learning=Watched(names, collapsed, seen=seen))
    prior = pt.FullGaussian.standard_normal(4, 0.2)
    pt.run(method, model, prior, parts, tolerance=1e-8, rounds=60, monitor=Monitor(every=0))
    before, after = np.array(seen).T
    rounding = 1e-13 * abs(before[0])
    assert len(seen) > 3
    assert (after - before).min() >= -rounding
    assert (after - before).max() > 0.01
    if collapsed:
        assert (before[1:] - after[:-1]).min() >= -rounding


def test_asynchronous_coordinate_ascent_takes_few_steps_and_none_lowers_the_bound():
    """In an asynchronous run q is far from its best for long, and a step at fixed q may lower the bound as q moves."""
    seen: list[tuple[float, float]] = []
    method = pt.methods.named("asynchronous", learning=Watched(["prior_scale"], False, seen=seen))
    found = pt.run(method, LOGISTIC, PRIOR, clients(LABELS, 5), rounds=60, monitor=Monitor(every=0))
    before, after = np.array(seen).T
    assert found.status is pt.Status.CONVERGED
    assert (after >= before - 1e-13 * abs(before)).all()
    assert found.state.communications - found.state.answers <= 5 * 3 * len(seen)
    assert len(seen) <= 10


@pytest.mark.parametrize("how", ["coordinate", pytest.param("collapsed", marks=pytest.mark.slow)])
def test_relevance_is_determined_feature_by_feature(how):
    """At the optimum s_j² = E[θ_j²] (MacKay 1992), and the fourth feature, which says nothing, has next to no scale."""
    found = learned(how, ["noise", "prior_scales"], tolerance=1e-9)
    scales, q = np.asarray(found.posterior.hyper["prior_scales"]), found.posterior.q
    np.testing.assert_allclose(scales[:3] ** 2, (np.square(q.mean) + np.square(q.sd))[:3], rtol=1e-3)
    assert scales[3] < 0.1 < scales[:3].min()
    assert found.free_energy > learned(how, ["noise", "prior_scale"], tolerance=1e-9).free_energy


STILL = Stochastic(("slope", "prior_scales"), optax.set_to_zero())
SPEEDS = np.linspace(1.0, 1.9, 10)


@pytest.mark.parametrize(
    ("method", "speeds", "rounds"),
    [
        (pt.methods.named("sequential", learning=STILL), None, 12),
        (pt.methods.named("synchronous", learning=STILL, damping=0.5), None, 60),
        (pt.methods.named("asynchronous", learning=STILL, damping=0.5), SPEEDS, 100),
    ],
    ids=["sequential", "synchronous", "asynchronous"],
)
def test_the_gradient_assembled_at_a_fixed_point_is_that_of_the_pooled_bound(method, speeds, rounds):
    model = pt.LogisticRegression(slope=1.3)
    found = pt.run(
        method,
        model,
        PRIOR,
        rounds=rounds,
        tolerance=None,
        monitor=Monitor(every=0),
        engine=LocalEngine(CLASSES, speeds),
    )
    state, above = found.state, ("slope", "prior_scales")
    summed = {name: jnp.asarray(column.sum(0)) for name, column in state.gradients.items()}
    assembled = bound_gradient(PRIOR, state.posterior, state.hyper, summed, above, 1.0)
    exact = jax.grad(lambda u: bound(model, PRIOR, LABELS, state.posterior, constrained(u, above)))(
        unconstrained(state.hyper, above)
    )
    np.testing.assert_allclose(assembled["slope"], exact["slope"], rtol=1e-10)
    np.testing.assert_allclose(assembled["prior_scales"], exact["prior_scales"], rtol=1e-10)


def test_the_assembled_gradient_is_that_of_the_collapsed_bound():
    """`sec:hyper-gradients`: where q is optimal its dependence on ε does not count; central differences, h = 1e-4."""
    found = pt.run(
        pt.methods.named("sequential", learning=Stochastic(("prior_scale",), optax.set_to_zero())),
        LOGISTIC,
        PRIOR,
        CLASSES,
        rounds=12,
        tolerance=None,
        monitor=Monitor(every=0),
    )
    gradient = bound_gradient(PRIOR, found.state.posterior, found.state.hyper, {}, ("prior_scale",), 1.0)["prior_scale"]
    slope = (pooled_bound(np.exp(1e-4)) - pooled_bound(np.exp(-1e-4))) / 2e-4
    assert float(gradient) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.slow
def test_layers_of_a_network_have_scales_of_their_own():
    model = pt.models.NetworkRegressor((4, 3, 1))
    prior = pt.MeanFieldGaussian.standard_normal(model.template(), 2.0)
    hyper = begin(model, prior, ["noise", "layer_scales"])
    assert hyper["layer_scales"].shape == (2,)
    first, second = prior_given(prior, {"layer_scales": jnp.array([0.5, 3.0])}).sd
    for layer, sd in ((first, 1.0), (second, 6.0)):
        assert {float(value) for leaf in jax.tree.leaves(layer) for value in leaf.ravel()} == {sd}
    start = pt.MeanFieldGaussian.tight(model.template())
    method = pt.methods.named(
        "sequential",
        solver=pt.Gradient(learning_rate=0.01, max_steps=100),
        start=start,
        learn=["noise", "layer_scales"],
        how="coordinate",
    )
    found = pt.run(method, model, prior, clients(Y, 2), rounds=4)
    fixed = pt.run(
        method=pt.Method(method.solver, start=start), model=model, prior=prior, partition=clients(Y, 2), rounds=4
    )
    assert found.free_energy > fixed.free_energy
    assert set(found.history["hyper"][-1]) == {"noise", "layer_scales"}


@pytest.mark.parametrize(
    "method",
    [
        pt.Method(pt.Newton()),
        pt.Method(pt.Newton(), pt.Synchronous(), pt.Damped(None)),
        pt.Method(pt.Newton(), aggregation=Anticipating()),
        pt.Method(NaturalGradient(), pt.Synchronous(), ServerOptimiser()),
    ],
    ids=["damped", "synchronous", "anticipating", "optimiser"],
)
def test_the_posterior_stays_prior_times_factors_while_the_prior_moves(method):
    learning = Stochastic(("prior_scale",))
    method = pt.Method(method.solver, method.schedule, method.aggregation, learning=learning)
    engine = LocalEngine(CLASSES)
    state = with_learning(init(PRIOR, 10, aggregation=method.aggregation), learning, LOGISTIC)
    for _ in range(15):
        state, _ = step(method, LOGISTIC, engine, state)
        whole = functools.reduce(operator.mul, (factor.natural for factor in state.factors), state.current_prior)
        np.testing.assert_allclose(whole.precision, state.posterior.precision, rtol=1e-10)
        np.testing.assert_allclose(whole.precision_mean, state.posterior.precision_mean, rtol=1e-10, atol=1e-10)
    assert float(state.hyper["prior_scale"]) != 1.0


@pytest.mark.parametrize(
    "aggregation", [Incremental(), Averaging(), DoubleLoop(), Shared()], ids=lambda a: type(a).__name__
)
def test_aggregations_that_store_a_product_update_it_with_the_prior(aggregation):
    """With the prior moved first or last, posterior and product are the same."""
    change = PRIOR.stretched(jnp.full(4, 0.5)) / PRIOR
    late = aggregation.with_prior(aggregation.init(PRIOR, 3), change)
    early = aggregation.init(PRIOR * change, 3)
    product = "product" if isinstance(aggregation, Averaging) else "prior"
    kept = (getattr(late.memory, product), getattr(early.memory, product))
    for moved, there in ((late.posterior, early.posterior), kept):
        np.testing.assert_allclose(moved.precision, there.precision, rtol=1e-15)


def test_a_run_resumed_from_any_step_ends_with_the_same_result(tmp_path):
    """Tasks under way keep the hyperparameters that they were sent with."""
    method = pt.methods.named("asynchronous", learn=["slope", "prior_scales"], how="stochastic")
    engine = LocalEngine(CLASSES, SPEEDS)
    states = [with_learning(init(PRIOR, 10, aggregation=method.aggregation), method.learning, LOGISTIC)]
    for _ in range(14):
        states.append(step(method, LOGISTIC, engine, states[-1])[0])
    save(tmp_path / "state", states[12], History())
    state, _ = load(tmp_path / "state", states[0])
    assert len({float(task.hyper["slope"]) for task in state.in_flight}) > 1
    for _ in range(2):
        state, _ = step(method, LOGISTIC, engine, state)
    assert all(eqx.tree_equal(value, vars(states[-1])[name]) for name, value in vars(state).items())


@pytest.mark.parametrize(("name", "model", "parts"), [("noise", LINEAR, NUMBERS), ("slope", LOGISTIC, CLASSES)])
def test_new_hyperparameter_values_do_not_recompile(name, model, parts):
    before = answer.traces
    learned("stochastic", [name], model, parts, rounds=2)
    once = answer.traces
    learned("stochastic", [name], model, parts, rounds=3)
    assert (once - before, answer.traces - once) in ((1, 0), (0, 0))


def test_the_summary_has_what_was_learned():
    rows = learned("collapsed", ["noise", "prior_scales"], rounds=20).posterior.summary(["a", "b", "c", "d"])
    scales = [f"prior_scales[{j}] (× the prior's sd)" for j in range(4)]
    assert [row["name"] for row in rows] == ["a", "b", "c", "d", "noise", *scales]
    assert rows[4]["mean"] == pytest.approx(optimum().alpha_ ** -0.5, rel=0.05)
    assert np.isnan(rows[4]["sd"])


@pytest.mark.parametrize(
    ("names", "model", "message"),
    [
        (
            ["nois"],
            LINEAR,
            "no hyperparameter named 'nois': choose one of noise, prior_scale, prior_scales, layer_scales",
        ),
        (["slope"], LINEAR, "no hyperparameter named 'slope'"),
        (
            ["noise"],
            eqx.tree_at(lambda model: model.noise, LINEAR, jnp.asarray(-1.0)),
            "The initial noise must be above 0",
        ),
        (["prior_scale", "prior_scales"], LINEAR, "name only one"),
        (["noise", "noise"], LINEAR, "each once"),
    ],
)
def test_unlearnable_hyperparameters_are_refused_by_name(names, model, message):
    with pytest.raises(pt.InputError, match=message):
        learned("collapsed", names, model)


def test_invalid_learning_settings_are_refused():
    with pytest.raises(pt.InputError, match="no learning rule named 'grid'"):
        learned("grid", ["noise"])
    refused = {
        "power_ep": "Power EP has no bound",
        "vcl": "fixed number of passes",
        "streaming_vb": "Without the deletion step",
    }
    for name, message in refused.items():
        with pytest.raises(pt.InputError, match=message):
            pt.methods.fit(name, LOGISTIC, PRIOR, CLASSES, learn=["prior_scale"])
    with pytest.raises(pt.InputError, match="a list of texts"):
        learned("collapsed", "noise")


def test_a_step_to_invalid_hyperparameters_is_skipped():
    """It leads to no noise at all; the run goes on with the one before, and says so."""
    far = Stochastic(("noise",), optax.sgd(1e3))
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learning=far)
    found = pt.run(method, LINEAR, PRIOR, clients(Y, 3), rounds=2, monitor=Monitor(every=0))
    assert float(found.state.hyper["noise"]) == 1.0
    assert "half the squared hyperparameter gradient" in found.message
    assert "initial values (noise): every optimiser step would make the posterior improper" in found.message
    assert positive(LINEAR, ["noise", "prior_scales"]) == ("noise", "prior_scales")


def test_the_line_search_halves_a_step_with_infinite_hyperparameters():
    """NaN would say that somebody is silent: what no hyperparameter may be has no bound instead."""
    far = Ascent(("prior_scale",), True, optax.sgd(100.0))
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learning=far)
    prior = pt.FullGaussian.standard_normal(4, 0.01)
    found = pt.run(method, LINEAR, prior, clients(Y, 3), rounds=6, monitor=Monitor(every=0))
    assert found.state.hyper["prior_scale"] > 1.0


def test_the_line_search_halves_no_further_than_the_residual_justifies():
    """Where answers are noisy, so is the gradient: a search that has promised less and less would only cost."""
    u, slope = {"noise": jnp.asarray(0.0)}, {"noise": jnp.asarray(1.0)}
    ascent = Ascent(("noise",), False, optax.sgd(1.0))
    for residual, trials in ((0.2, 4), (1e-9, 21)):
        view = LearningView(u, slope, lambda u: -abs(float(u["noise"])), residual, 1e-9, 1.0)
        moved = ascent.update(view, ascent.init(u))
        assert (moved.u, moved.trials, moved.left) == (u, trials, np.inf)


NOISY = pt.Gradient(learning_rate=0.02, max_steps=200, batch_size=32)


def test_collapsed_ascent_reports_that_it_waits_for_answers_that_do_not_converge():
    collapsed, coordinate = (
        pt.run(
            pt.methods.named("sequential", solver=NOISY, learn=["prior_scale"], how=how),
            LOGISTIC,
            pt.MeanFieldGaussian.standard_normal(4, 0.1),
            clients(LABELS, 3),
            rounds=6,
            monitor=Monitor(every=0),
        )
        for how in ("collapsed", "coordinate")
    )
    assert float(collapsed.posterior.hyper["prior_scale"]) == 1.0
    assert (
        'still have their initial values (prior_scale): the residual stayed above the tolerance; use how="coordinate"'
        in (collapsed.message)
    )
    assert float(coordinate.posterior.hyper["prior_scale"]) > 3.0
    assert "initial values" not in coordinate.message


def test_clients_without_an_accepted_answer_are_named():
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["noise"])
    state = with_learning(init(PRIOR, ["Leeds", "Lyon", "Lund"]), method.learning, LINEAR)
    engine = LocalEngine(dataclasses.replace(clients(Y, 3), names=state.names))
    for _ in range(2):
        state, _ = step(method, LINEAR, engine, state)
    assert "initial values (noise): no answer of Lund was accepted" in unmoved(method.learning, state)


def test_histories_have_the_values_step_by_step():
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["noise", "prior_scales"], how="stochastic")
    found = pt.run(method, LINEAR, PRIOR, clients(Y, 3), rounds=3, monitor=Monitor(every=0))
    state, engine = (
        with_learning(init(PRIOR, 3, aggregation=method.aggregation), method.learning, LINEAR),
        LocalEngine(clients(Y, 3)),
    )
    for row in found.history:
        state, _ = step(method, LINEAR, engine, state)
        assert row["hyper"] == {name: np.asarray(value).tolist() for name, value in state.hyper.items()}
    assert len({row["hyper"]["noise"] for row in found.history}) > 5


@pytest.mark.parametrize(("how", "finite"), [("coordinate", False), ("stochastic", True)])
def test_an_answer_to_stale_hyperparameters_does_not_count_as_converged(how, finite):
    method = pt.methods.named("asynchronous", solver=pt.Conjugate(), learn=["noise"], how=how)
    engine = LocalEngine(clients(Y, 3))
    state, _ = step(
        method, LINEAR, engine, with_learning(init(PRIOR, 3, aggregation=method.aggregation), method.learning, LINEAR)
    )
    moved = dataclasses.replace(state, hyper={"noise": jnp.asarray(2.0)})
    for begun, settled in ((state, True), (moved, finite)):
        after, event = step(method, LINEAR, engine, begun)
        assert np.isfinite(after.residual[list(event.clients)]).all() == settled


def test_a_client_that_rejoins_loses_its_stored_gradient():
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["noise"], how="stochastic")
    state = with_learning(init(PRIOR, 3, aggregation=method.aggregation), method.learning, LINEAR)
    engine = LocalEngine(clients(Y, 3))
    for _ in range(3):
        state, _ = step(method, LINEAR, engine, state)
    back = join(leave(state, "client 1", pt.Damped()), "client 1", pt.Damped())
    assert np.isnan(back.gradients["noise"]).tolist() == [False, True, False]


def test_single_precision_stays_single_beside_a_model_in_double(tmp_path):
    """Else a checkpoint would not be resumed, nor a client answer."""
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), PRIOR)
    rows = zip(np.array_split(np.float32(X), 3), np.array_split(np.float32(Y), 3), strict=True)
    parts = pt.federate([pt.Table(*part) for part in rows])
    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["noise", "prior_scale"])
    options = {"tolerance": 1e-5, "monitor": Monitor(every=0), "store": Checkpoint(tmp_path / "state")}
    for rounds in (4, 30):
        found = pt.run(method, pt.LinearRegression(1.0), single, parts, rounds=rounds, **options)
    held = (found.state.posterior, found.state.factors, found.state.hyper, found.state.learning[0].params)
    assert {leaf.dtype for leaf in jax.tree.leaves(held)} == {jnp.dtype("float32")}
    assert found.status is pt.Status.CONVERGED
    expected = [optimum().alpha_ ** -0.5, optimum().lambda_ ** -0.5]
    np.testing.assert_allclose(list(found.posterior.hyper.values()), expected, rtol=1e-3)


def test_a_learning_run_cannot_be_resumed_with_other_hyperparameters(tmp_path):
    options = {"rounds": 2, "store": Checkpoint(tmp_path / "state")}
    learned("coordinate", ["noise"], **options)
    for names in ([], ["prior_scale"]):
        with pytest.raises(pt.InputError, match="learns other hyperparameters"):
            learned("coordinate", names, **options)


def test_a_slope_may_be_given_as_a_whole_number():
    assert begin(pt.LogisticRegression(slope=2), PRIOR, ["slope"])["slope"] == 2.0
