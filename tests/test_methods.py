"""Named methods, each a composition of the axes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partita as pt
from partita.engines import local
from partita.server.monitor import Monitor
from partita.storage.checkpoint import Checkpoint
from support.problems import FULL, MODEL, PARTS, PRIOR, SOLVER, exact, faulty, not_finite


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        (pt.methods.sequential(pt.Conjugate()), PARTS.only(PARTS.names[0])),
        (pt.methods.sequential(pt.Conjugate()), PARTS.only(PARTS.names[2])),
        (pt.methods.sequential(pt.Conjugate()), PARTS),
        (pt.methods.sequential(pt.Conjugate(), order="residual"), PARTS),
        (pt.methods.synchronous(pt.Conjugate(), damping=1.0), PARTS),
    ],
)
def test_with_a_conjugate_model_a_pass_is_the_exact_posterior_of_the_rows(method, parts):
    """`sec:optim:analytic`: whoever holds the rows, one answer of each is enough."""
    result = pt.run(method, pt.LinearRegression(0.5), FULL, parts, rounds=1, monitor=Monitor(every=0))
    precision, mean = exact(parts)
    # sums of at most sixty products, and a solve with a condition number of about 2
    np.testing.assert_allclose(result.posterior.q.precision, precision, rtol=1e-12)
    np.testing.assert_allclose(result.posterior.mean, mean, rtol=1e-11)


def test_global_vi_on_all_rows_is_the_fixed_point_that_sequential_pvi_reaches():
    """`prop:fixed-point`, on logistic regression with full covariance."""
    together = pt.run(pt.methods.sequential(SOLVER), MODEL, FULL, PARTS.pooled(), monitor=Monitor(every=0))
    apart = pt.run(pt.methods.sequential(SOLVER), MODEL, FULL, PARTS, tolerance=1e-14, monitor=Monitor(every=0))
    assert (together.status, apart.status) == (pt.Status.CONVERGED, pt.Status.CONVERGED)
    np.testing.assert_allclose(apart.posterior.q.precision, together.posterior.q.precision, rtol=1e-6)
    np.testing.assert_allclose(apart.posterior.mean, together.posterior.mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "dampings", "clients"),
    [
        (pt.methods.sequential(SOLVER), {1.0}, [["client 0"], ["client 1"], ["client 2"]]),
        (pt.methods.sequential(SOLVER, damping=0.4), {0.4}, [["client 0"], ["client 1"], ["client 2"]]),
        (pt.methods.synchronous(SOLVER), {0.5}, [["client 0", "client 1", "client 2"]]),
        (pt.methods.asynchronous(SOLVER), {1.0}, [["client 0"], ["client 1"], ["client 2"]]),
    ],
)
def test_methods_have_the_damping_and_schedule_of_their_names(method, dampings, clients):
    history = pt.run(method, MODEL, PRIOR, PARTS, rounds=1).history
    assert set(history["damping"]) == dampings
    assert history["clients"].tolist() == clients


@pytest.mark.parametrize(
    ("method", "schedule"), [(pt.methods.sequential, pt.Sequential()), (pt.methods.synchronous, pt.Synchronous())]
)
def test_backtracking_watches_the_free_energy(method, schedule):
    watching = pt.Method(SOLVER, schedule, pt.Backtracking(0.5, monitor_free_energy=True))
    assert eqx.tree_equal(method(SOLVER, damping=0.5, backtracking=True), watching)


def test_anticipating_estimates_the_factors_of_clients_without_answers():
    method = pt.methods.sequential(SOLVER, anticipating=True)
    first = pt.run(method, MODEL, PRIOR, PARTS, communications=1).state
    heard, *others = first.factors
    for factor in others:
        assert jax.tree.all(jax.tree.map(np.array_equal, factor, heard))


def test_the_default_solver_solves_each_client_to_its_tolerance():
    result = pt.run(pt.methods.sequential(), MODEL, PRIOR, PARTS)
    precise = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, tolerance=1e-12)
    assert result.status is pt.Status.CONVERGED
    # both residual and Newton's tolerance are 1e-6 nats a client
    assert result.posterior.q.kl(precise.posterior.q) < 1e-5


def pooled_ascent(parts, prior, start, steps, learning_rate):
    """Adam on the free energy of pooled rows in (mean, log sd), by optax and plain automatic differentiation."""
    x = jnp.concatenate([shard.data.x[: int(shard.rows)] for shard in parts.shards])
    y = jnp.concatenate([shard.data.y[: int(shard.rows)] for shard in parts.shards])
    nodes, masses = np.polynomial.hermite_e.hermegauss(20)
    masses = masses / masses.sum()
    prior_mean, prior_sd = prior.mean, prior.sd

    def loss(coordinates):
        mean, log_sd = coordinates
        sd = jnp.exp(log_sd)
        grid = (x @ mean)[:, None] + jnp.sqrt(x**2 @ sd**2)[:, None] * nodes
        ell = jnp.sum((y[:, None] * grid - jnp.logaddexp(0, grid)) @ masses)
        ratio = (sd**2 + (mean - prior_mean) ** 2) / prior_sd**2
        return jnp.sum(ratio - 1 - 2 * log_sd + 2 * jnp.log(prior_sd)) / 2 - ell

    coordinates = (start.mean, jnp.log(start.sd))
    adam = optax.adam(learning_rate)
    state = adam.init(coordinates)
    gradient = jax.jit(jax.grad(loss))
    for _ in range(steps):
        update, state = adam.update(gradient(coordinates), state)
        coordinates = optax.apply_updates(coordinates, update)
    return coordinates


@pytest.mark.parametrize("clients", [1, 3, 10])
def test_global_vi_takes_the_steps_of_adam_on_pooled_rows_for_every_number_of_clients(clients):
    """`prop:local-global-fp` and the chain rule."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(60, 3))
    data = pt.Table(x, (x[:, 0] + generator.normal(size=60) > 0).astype(float))
    parts = pt.split(data, [np.arange(60)[k::clients] for k in range(clients)])
    prior = pt.MeanFieldGaussian.standard_normal(3, 1.5)
    start = pt.MeanFieldGaussian.tight(3, seed=clients)
    method = pt.methods.global_vi(learning_rate=0.05, start=start)
    result = pt.run(method, MODEL, prior, parts, rounds=200, tolerance=0, monitor=Monitor(every=0))
    mean, log_sd = pooled_ascent(parts, prior, start, 200, 0.05)
    np.testing.assert_allclose(result.posterior.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(jnp.log(result.posterior.sd), log_sd, rtol=0, atol=1e-10)
    assert result.state.communications == 200 * clients


def test_global_vi_keeps_the_posterior_the_product_of_prior_and_factors():
    start = pt.MeanFieldGaussian.tight(3, seed=1)
    pt.checks.check_invariant(pt.methods.global_vi(start=start), MODEL, PRIOR, PARTS)
    pt.checks.check_invariant(pt.methods.stochastic_global_vi(start=start), MODEL, PRIOR, PARTS)


def test_a_step_of_stochastic_global_vi_is_one_on_the_rows_of_one_client_repeated():
    """`eq:stoch-global`: the client's rows with the weight N/N_k stand for everybody's."""
    client = PARTS.only(PARTS.names[0])
    weight = PARTS.rows / PARTS.sizes[0]
    repeated = pt.federate([client.shards[0].data], weights=[np.asarray(client.shards[0].weights) * weight])
    start = pt.MeanFieldGaussian.tight(3, seed=1)
    method = pt.methods.stochastic_global_vi(order="fixed", start=start)
    one = pt.run(method, MODEL, PRIOR, PARTS, communications=1)
    mean, log_sd = weighted_step(repeated, PRIOR, start)
    np.testing.assert_allclose(one.posterior.mean, mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(jnp.log(one.posterior.sd), log_sd, rtol=0, atol=1e-12)


def weighted_step(parts, prior, start):
    """One step of Adam on the free energy of the only client, whose rows have weights."""
    shard = parts.shards[0]

    def loss(coordinates):
        q = pt.MeanFieldGaussian.from_mean_sd(coordinates[0], jnp.exp(coordinates[1]))
        return q.kl(prior) - MODEL.ell(q, shard.data, shard.weights, jax.random.key(0))

    coordinates = (start.mean, jnp.log(start.sd))
    update, _ = optax.adam(1e-2).update(jax.grad(loss)(coordinates), optax.adam(1e-2).init(coordinates))
    return optax.apply_updates(coordinates, update)


def test_a_resumed_global_vi_run_keeps_its_optimiser_state(tmp_path):
    method = pt.methods.global_vi(start=pt.MeanFieldGaussian.tight(3))
    whole = pt.run(method, MODEL, PRIOR, PARTS, rounds=20)
    pt.run(method, MODEL, PRIOR, PARTS, rounds=7, store=Checkpoint(tmp_path / "run.npz"))
    resumed = pt.run(method, MODEL, PRIOR, PARTS, rounds=20, store=Checkpoint(tmp_path / "run.npz"))
    np.testing.assert_array_equal(resumed.posterior.q.precision, whole.posterior.q.precision)
    np.testing.assert_array_equal(resumed.posterior.mean, whole.posterior.mean)


def client_answers(exponents):
    """Each client's own VI against the prior to the power of its exponent: precision·mean and precision."""
    found = []
    for k, exponent in enumerate(exponents):
        # the prior's normaliser is a constant of the problem, so a power of a Gaussian is as good as a Gaussian
        result = pt.run(
            pt.methods.sequential(SOLVER), MODEL, PRIOR**exponent, PARTS.only(PARTS.names[k]), monitor=Monitor(every=0)
        )
        found.append((result.posterior.q.precision_mean, result.posterior.q.precision))
    return np.array(found)


def test_committees_multiply_independent_client_answers():
    """BCM (same): Π q_m / p^(M−1); BCM (split): Π q_m, with the prior's share N_m/N each (`sec:experiments`)."""
    same = pt.run(pt.methods.bcm_same(SOLVER), MODEL, PRIOR, PARTS)
    shift, precision = client_answers([1.0, 1.0, 1.0]).sum(axis=0)
    np.testing.assert_allclose(same.posterior.q.precision, precision - 2 * PRIOR.precision, rtol=1e-6)
    np.testing.assert_allclose(same.posterior.q.precision_mean, shift, rtol=1e-6, atol=1e-6)

    split = pt.run(pt.methods.bcm_split(SOLVER), MODEL, PRIOR, PARTS)
    shift, precision = client_answers([size / PARTS.rows for size in PARTS.sizes]).sum(axis=0)
    np.testing.assert_allclose(split.posterior.q.precision, precision, rtol=1e-6)
    np.testing.assert_allclose(split.posterior.q.precision_mean, shift, rtol=1e-6, atol=1e-6)
    for result in (same, split):
        assert result.status is pt.Status.COMPLETE
        assert result.state.communications == len(PARTS)


@pytest.mark.parametrize("bcm", [pt.methods.bcm_same, pt.methods.bcm_split])
def test_committees_are_exact_where_the_family_is(bcm):
    result = pt.run(bcm(pt.Conjugate()), pt.LinearRegression(0.5), FULL, PARTS)
    precision, mean = exact(PARTS)
    np.testing.assert_allclose(result.posterior.q.precision, precision, rtol=1e-12)
    np.testing.assert_allclose(result.posterior.mean, mean, rtol=1e-11)


def test_continual_learning_is_one_pass_of_sequential_pvi():
    """`eq:vcl_objective`."""
    continual = pt.run(pt.methods.vcl(SOLVER, order="random"), MODEL, PRIOR, PARTS, seed=4)
    sequential = pt.run(pt.methods.sequential(SOLVER, order="random"), MODEL, PRIOR, PARTS, seed=4, rounds=1)
    np.testing.assert_allclose(continual.posterior.q.precision, sequential.posterior.q.precision, rtol=1e-12)
    assert continual.status is pt.Status.COMPLETE
    assert continual.history["clients"].tolist() == sequential.history["clients"].tolist()


def test_streaming_counts_rows_as_often_as_it_sees_them():
    """Without the deletion step, three passes over conjugate rows are the posterior of every row three times."""
    method = pt.methods.streaming_vb(pt.Conjugate())
    result = pt.run(method, pt.LinearRegression(0.5), FULL, PARTS, rounds=3)
    precision, _ = exact(PARTS)
    np.testing.assert_allclose(result.posterior.q.precision, np.eye(3) + 3 * (precision - np.eye(3)), rtol=1e-12)


def test_solvers_begin_at_the_given_start_until_the_posterior_has_changed():
    start = pt.MeanFieldGaussian.tight(3, seed=2)
    still = pt.solvers.FixedPoint(max_steps=0)
    method = pt.Method(still, pt.Sequential(), start=start)
    first = pt.run(method, MODEL, PRIOR, PARTS, communications=1).posterior.q
    second = pt.run(method, MODEL, PRIOR, PARTS, communications=3).posterior.q
    # prior plus what takes it to the start, to rounding
    np.testing.assert_allclose(first.precision, start.precision, rtol=1e-12)
    np.testing.assert_array_equal(second.precision, first.precision)


@pytest.mark.parametrize("name", pt.methods.NAMED)
def test_every_method_runs_by_name_with_the_same_columns(name):
    solver = {"solver": SOLVER} if "solver" in pt.methods.settings_of(name) else {}
    result = pt.methods.fit(name, MODEL, PRIOR, PARTS, solver, rounds=2)
    reference = pt.methods.fit("sequential", MODEL, PRIOR, PARTS, {"solver": SOLVER}, rounds=2)
    assert {*result.history.columns} - {"log_evidence"} == {*reference.history.columns}
    assert np.isfinite(result.free_energy)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("parallel", {}, "There is no method named 'parallel': choose one of sequential"),
        ("vcl", {"damping": 0.5}, "There is no setting of vcl named 'damping': choose one of solver, order"),
    ],
)
def test_an_unknown_name_raises_an_error_that_lists_the_known_ones(name, settings, message):
    with pytest.raises(pt.InputError, match=message):
        pt.methods.fit(name, MODEL, PRIOR, PARTS, settings)


def test_selecting_an_unknown_client_is_refused():
    with pytest.raises(pt.InputError, match="There is no client named 'client 9': choose one of client 0"):
        PARTS.only("client 9")


@pytest.mark.parametrize("name", pt.methods.NAMED)
def test_every_method_accepts_the_common_settings(name):
    """As arguments, and by name: there is one way in."""
    method = pt.methods.NAMED[name](temperature=0.5, trust_region=2.0)
    assert (method.temperature, method.trust_region) == (0.5, 2.0)
    assert pt.methods.named(name, temperature=0.5).temperature == 0.5
    with pytest.raises(TypeError, match="cold"):
        pt.methods.NAMED[name](cold=True)
    learned = pt.methods.NAMED[name](learn=["slope"], how="stochastic").learning
    assert isinstance(learned, pt.learning.Stochastic)
    assert learned.names == ("slope",)


@pytest.mark.parametrize("method", [pt.methods.vcl, pt.methods.bcm_same])
def test_a_pass_with_a_refused_client_stalls(method, monkeypatch):
    monkeypatch.setattr(local, "client_update", faulty(not_finite))
    result = pt.run(method(SOLVER), MODEL, PRIOR, PARTS)
    assert result.status is pt.Status.STALLED
    assert "what client 1 answered was refused" in result.message
    assert result.state.versions.tolist() == [1, 0, 1]


def test_global_vi_converges_with_covariances_and_says_so():
    pooled = pt.run(pt.methods.sequential(SOLVER), MODEL, FULL, PARTS.pooled(), monitor=Monitor(every=0))
    result = pt.run(
        pt.methods.global_vi(learning_rate=0.05),
        MODEL,
        FULL,
        PARTS,
        rounds=1000,
        tolerance=1e-8,
        monitor=Monitor(every=0),
    )
    assert result.status is pt.Status.CONVERGED
    assert result.posterior.q.kl(pooled.posterior.q) < 1e-7


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (pt.MeanFieldGaussian.tight(2), "different shape"),
        (FULL, "cannot be combined"),
        (pt.MeanFieldGaussian.tight(3) ** -1, "The start is improper"),
    ],
)
@pytest.mark.parametrize("method", [pt.methods.sequential, pt.methods.global_vi])
def test_an_incompatible_start_is_refused(method, start, message):
    with pytest.raises(pt.InputError, match=message):
        pt.run(method(start=start), MODEL, PRIOR, PARTS)


@pytest.mark.parametrize("name", ["sequential", "global_vi"])
def test_a_start_takes_the_precision_of_the_prior(name, tmp_path):
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), PRIOR)
    data = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), [shard.data for shard in PARTS.shards])
    settings = {"start": pt.MeanFieldGaussian.tight(3)} | ({} if name == "global_vi" else {"solver": SOLVER})
    checkpoint = tmp_path / "run.npz"
    for rounds in (1, 2):
        result = pt.methods.fit(
            name, MODEL, single, pt.federate(data), settings, rounds=rounds, store=Checkpoint(checkpoint)
        )
    assert {leaf.dtype for leaf in jax.tree.leaves(result.state.factors)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("rate", "message"), [(0.0, "above 0, not 0.0"), (-1.0, "above 0"), (np.nan, "above 0")])
def test_a_learning_rate_is_positive(rate, message):
    with pytest.raises(pt.InputError, match=message):
        pt.methods.global_vi(learning_rate=rate)


def test_too_large_a_learning_rate_is_reported_with_a_remedy():
    result = pt.run(pt.methods.global_vi(learning_rate=500.0), MODEL, PRIOR, PARTS, rounds=5)
    assert result.status is pt.Status.IMPROPER
    assert result.message.endswith("would make the posterior improper at this learning rate. Lower it.")
