"""Short runs that together cover every axis, each a function to a flat dict from names to arrays of numbers.

What is recorded of leaves and messages goes by place and not by name, so that renaming a field changes nothing. Runs
take few steps and stop by their number, so that no rounding decides how many there are.
"""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax

import partita as pt
from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import RemoteEngine
from partita.io.wire import unpack
from partita.server.membership import join, leave, retire
from partita.server.state import init
from support.weather import FaultyLink

GENERATOR = np.random.default_rng(0)
SIZES = (8, 12, 16)
ONE_OVER_M = 1 / len(SIZES)
X = GENERATOR.normal(size=(sum(SIZES), 2)) @ np.array([[1.0, 0.4], [0.0, 0.8]])
F = X @ [1.0, -0.7]
NOISE, UNIFORM = GENERATOR.normal(size=len(X)), GENERATOR.uniform(size=len(X))
REAL, LABELS, COUNTS = F + 0.5 * NOISE, (1 / (1 + np.exp(-F)) > UNIFORM) * 1.0, GENERATOR.poisson(np.exp(0.5 * F)) * 1.0
POINTS = np.where(LABELS[:, None] > 0, [-2.0, 1.0], [2.0, 0.0]) + 0.6 * GENERATOR.normal(size=X.shape)
TIMES = GENERATOR.exponential(0.5, size=len(X))

FULL, MEAN_FIELD = pt.FullGaussian.standard_normal(2, 1.5), pt.MeanFieldGaussian.standard_normal(2, 1.5)
LOGISTIC, LINEAR = pt.LogisticRegression(), pt.LinearRegression(0.8)
NEWTON = pt.Newton(max_steps=5, tolerance=None)
FIXED = pt.solvers.FixedPoint(damping=0.7, max_steps=3, tolerance=None)

COLUMNS = (
    *("step", "communications", "rounds", "gradient_steps", "synchronous_steps", "clock", "staleness", "residual"),
    *("damping", "temperature", "free_energy", "reported_free_energy", "log_evidence"),
)
"""The columns of a history that hold a number a step; seconds are not recorded."""
MEASURED = ("error", "nll", "brier", "rmse")
"""Metrics that some runs compute."""
TOLD = ("refused", "unanswered", "skipped", "unconverged")
"""Those that hold something about some of the clients."""
RECORDED = {"unconverged": "unsolved"}
"""Names that columns had when they were recorded."""


def clients(data):
    """Rows, an array or a tree of them, shared out among three clients of different sizes."""
    cuts = np.cumsum(SIZES)[:-1]
    split = jax.tree.map(lambda leaf: np.split(leaf, cuts), data)
    parts = [jax.tree.map(lambda parts, k=k: parts[k], split, is_leaf=_is_list) for k in range(len(SIZES))]
    return pt.federate(parts, buckets=1)


def _is_list(node):
    return type(node) is list


NUMBERS, CLASSES = clients(pt.Table(X, REAL)), clients(pt.Table(X, LABELS))


def leaves(name, tree):
    return {f"{name}/{place}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}


def numbers_of_state(state):
    """What a server knows, with the factors of all clients, whose leaves include their log scales, in one array."""
    return {
        **leaves("posterior", state.posterior),
        **leaves("factor", jax.tree.map(lambda *each: np.stack(each), *state.factors)),
        **leaves("hyper", state.hyper),
        "versions": np.asarray(state.versions),
        "ell": np.asarray(state.ell),
        "residuals": np.asarray(state.residual),
    }


def numbers_of(result):
    """What is recorded of any run."""
    found, history = numbers_of_state(result.state), result.history
    found |= {f"history/{name}": history[name] for name in COLUMNS if name in history.columns}
    found |= {f"history/{RECORDED.get(name, name)}": np.array([len(row[name]) for row in history]) for name in TOLD}
    found |= {f"history/{name}": history[name] for name in MEASURED if name in history.columns}
    found["history/clients"] = np.array([[name in row["clients"] for name in result.state.names] for row in history])
    for name in history.rows[0].get("hyper", {}):
        found[f"history/hyper/{name}"] = np.array([row["hyper"][name] for row in history])
    # a text as the numbers of its letters
    return found | {"status": np.array([ord(letter) for letter in result.status.value])}


def named(**results):
    """The numbers of several runs, each under its name."""
    return {f"{run}/{name}": array for run, found in results.items() for name, array in found.items()}


def fit(method, model, prior, parts, speeds=None, every=1, metrics=None, store=None, **options):
    """The result of a run of three rounds, which no tolerance ends before."""
    options = {"rounds": 3, "tolerance": None} | options
    where = {"partition": parts} if speeds is None else {"engine": pt.LocalEngine(parts, speeds)}
    monitor = pt.Monitor(metrics, every=every, progress=False)
    return pt.run(method, model, prior, monitor=monitor, store=store, **where, **options)


def pvi(*what, **options):
    """The numbers of such a run."""
    return numbers_of(fit(*what, **options))


def sequential():
    orders = {order: pt.methods.sequential(NEWTON, order) for order in ("fixed", "random", "residual")}
    return named(**{name: pvi(method, LOGISTIC, MEAN_FIELD, CLASSES) for name, method in orders.items()})


def synchronous():
    """Damped by 1/M and by a number; the second reports the free energy that clients have told."""
    one, half = pt.methods.synchronous(NEWTON, damping=ONE_OVER_M), pt.methods.synchronous(NEWTON, damping=0.5)
    return named(one_over_m=pvi(one, LOGISTIC, FULL, CLASSES), half=pvi(half, LOGISTIC, FULL, CLASSES, every=0))


def random_subset():
    method = pt.Method(pt.solvers.LBFGS(max_steps=5, tolerance=None), pt.schedules.RandomSubset(2), pt.Damped(0.6))
    counts = clients(pt.Table(X, COUNTS))
    return pvi(method, pt.PoissonRegression(), MEAN_FIELD, counts, seed=3)


def asynchronous():
    """Unequal speeds, and steps on mini-batches."""
    solver = pt.Gradient(optax.adam, 0.05, max_steps=12, window=100, batch_size=5)
    method = pt.methods.asynchronous(solver, damping=0.5)
    return pvi(method, pt.models.ProbitRegression(), MEAN_FIELD, CLASSES, rounds=4, speeds=(1.0, 1.7, 0.4), seed=1)


def backtracking():
    """Undamped at first, which lowers the free energy, so that damping is halved."""
    method = pt.methods.synchronous(FIXED, damping=1.0, backtracking=True)
    table = pt.Table(3 * np.abs(X) @ np.array([[1.0, 0.9], [0.9, 1.0]]), LABELS)
    return pvi(method, LOGISTIC, MEAN_FIELD, clients(table), rounds=5)


def temperature():
    cold = pt.methods.sequential(NEWTON, temperature=0.3)
    hot = pt.methods.synchronous(NEWTON, damping=ONE_OVER_M, temperature=2.0)
    return named(cold=pvi(cold, LOGISTIC, MEAN_FIELD, CLASSES), hot=pvi(hot, LOGISTIC, FULL, CLASSES))


def starts():
    """Visits that begin elsewhere: the first ones, and all of them."""
    begin = pt.MeanFieldGaussian.from_mean_sd(np.array([0.5, -0.5]), np.array([0.1, 0.2]))
    once, always = pt.methods.sequential(FIXED, start=begin), pt.Method(FIXED, start=begin, restart=True)
    return named(once=pvi(once, LOGISTIC, MEAN_FIELD, CLASSES), always=pvi(always, LOGISTIC, MEAN_FIELD, CLASSES))


def stopping():
    """Visits that end by a solver's own tolerance."""
    solvers = {"fixed_point": pt.solvers.FixedPoint(), "damped": pt.solvers.FixedPoint(0.5), "newton": pt.Newton()}
    return named(**{name: pvi(pt.methods.sequential(s), LOGISTIC, FULL, CLASSES) for name, s in solvers.items()})


def anticipating():
    return pvi(pt.methods.sequential(pt.Conjugate(), anticipating=True), LINEAR, FULL, NUMBERS, rounds=2)


def averaging():
    everybody = pt.methods.bayesian_admm(NEWTON, 0.7, mixing=None, step=1.0)
    some = pt.methods.bayesian_admm(NEWTON, 0.7, mixing=0.3, step=0.8, participants=2, over="answered")
    return named(
        everybody=pvi(everybody, LOGISTIC, FULL, CLASSES, rounds=4), some=pvi(some, LOGISTIC, FULL, CLASSES, rounds=4)
    )


def server_optimisers():
    """Global, stochastic and incremental VI."""
    methods = {
        "together": pt.methods.global_vi(optax.adam, 0.1, start=pt.MeanFieldGaussian.tight(2)),
        "stochastic": pt.methods.stochastic_global_vi(optax.sgd, 1e-3),
        "incremental": pt.methods.incremental_vi(learning_rate=0.02),
    }
    return named(**{name: pvi(m, LOGISTIC, MEAN_FIELD, CLASSES, rounds=4) for name, m in methods.items()})


def power_ep():
    """By row sites, with one factor a client and with one for all."""
    own, shared = pt.methods.power_ep(0.5, passes=2), pt.methods.stochastic_power_ep(0.5, 0.3)
    return named(own=pvi(own, LOGISTIC, FULL, CLASSES), shared=pvi(shared, LOGISTIC, MEAN_FIELD, CLASSES))


def moments():
    """Tilted densities of whole clients: matched, by their divergence, in a double loop and in small steps of it."""
    grid = pt.expectations.GridQuadrature(12)
    matching = pt.Method(pt.solvers.MomentMatching(0.7, grid), aggregation=pt.Damped(0.8))
    divergence = pt.Method(pt.solvers.AlphaDivergence(alpha=0.5, rule=grid, max_steps=5, tolerance=None))
    loop = pt.methods.double_loop(0.5, points=12)
    small = pt.methods.snep(0.5, samples=40, participants=2)
    return named(
        matching=pvi(matching, LOGISTIC, FULL, CLASSES),
        divergence=pvi(divergence, LOGISTIC, FULL, CLASSES, rounds=2),
        double_loop=pvi(loop, LOGISTIC, MEAN_FIELD, CLASSES, rounds=6),
        snep=pvi(small, LOGISTIC, MEAN_FIELD, CLASSES, rounds=6),
    )


def mixture():
    """A product of a Dirichlet, a Gaussian and a gamma."""
    ones = np.ones((2, 2))

    def member(mean, sd):
        return pt.families.Product(
            weights=pt.families.Dirichlet.from_concentration(1.5 * np.ones(2)),
            means=pt.MeanFieldGaussian.from_mean_sd(mean, sd * ones),
            precisions=pt.families.Gamma.from_shape_rate(2.0 * ones, ones),
        )

    start = member(np.array([[-1.0, 0.5], [1.0, 0.0]]), 0.5)
    method = pt.methods.sequential(pt.solvers.FixedPoint(max_steps=5, tolerance=None), start=start)
    return pvi(method, pt.models.GaussianMixture(), member(0 * ones, 4.0), clients(POINTS))


def positive_numbers():
    """A rate, a mean time and a scale that have no closed form: gamma, inverse gamma and log-normal."""

    def rate(theta, count):
        return count * jnp.log(theta) - theta

    def mean_time(theta, time):
        return -jnp.log(theta) - time / theta

    def scale(theta, residual):
        return jax.scipy.stats.norm.logpdf(residual, 0.0, theta)

    draws = pt.expectations.MonteCarlo(20)
    climb = pt.Gradient(max_steps=8)
    return named(
        gamma=pvi(
            pt.methods.sequential(pt.solvers.FixedPoint(0.5, 4, None)),
            pt.LogDensity(rate, expectation=draws),
            pt.families.Gamma.from_shape_rate(2.0, 1.0),
            clients(COUNTS),
        ),
        inverse_gamma=pvi(
            pt.methods.sequential(climb),
            pt.LogDensity(mean_time, expectation=draws),
            pt.families.InverseGamma.from_shape_scale(3.0, 1.0),
            clients(TIMES),
        ),
        log_normal=pvi(
            pt.methods.synchronous(climb, damping=ONE_OVER_M),
            pt.LogDensity(scale, expectation=draws),
            pt.families.LogNormal.from_median_sd(1.0, 1.0),
            clients(REAL - F),
        ),
    )


def unknown_noise():
    """A normal–gamma at once, and a product of the two block by block."""
    joint = pt.families.NormalGamma.from_parameters(np.zeros(2), 2.0 * np.eye(2), 2.0, 1.5)
    apart = pt.families.Product(coefficients=FULL, precision=pt.families.Gamma.from_shape_rate(2.0, 1.5))
    sweeps = pt.solvers.Blockwise(
        pt.Conjugate(), (("coefficients",), ("exponent", "rate")), max_steps=3, tolerance=None
    )
    model = pt.models.UnknownNoiseRegression()
    return named(
        joint=pvi(pt.methods.sequential(pt.Conjugate()), model, joint, NUMBERS, rounds=2),
        apart=pvi(pt.methods.synchronous(sweeps, damping=0.5), model, apart, NUMBERS),
    )


def network():
    model = pt.models.NetworkClassifier((2, 3, 2), expectation=pt.expectations.LocalReparameterisation(4))
    solver = pt.Gradient(optax.adam, 0.02, max_steps=15, batch_size=6)
    method = pt.methods.synchronous(solver, damping=0.3, start=pt.MeanFieldGaussian.tight(model.template()))
    return pvi(method, model, pt.MeanFieldGaussian.standard_normal(model.template()), CLASSES, rounds=2, seed=5)


def learning():
    """Noise and prior scale, in the three ways."""

    def learn(name, how, **options):
        settings = {"solver": pt.Conjugate(), "damping": 0.6, "learn": ["noise", "prior_scale"], "how": how}
        return pvi(pt.methods.named(name, **settings), LINEAR, FULL, NUMBERS, **options)

    return named(
        coordinate=learn("sequential", "coordinate", rounds=6),
        collapsed=learn("synchronous", "collapsed", rounds=10, tolerance=1e-3),
        stochastic=learn("asynchronous", "stochastic", rounds=6, speeds=(1.0, 1.3, 1.7), every=0),
    )


def committees():
    """Methods of one pass, and those of one client."""
    once = (pt.methods.bcm_same, pt.methods.bcm_split, pt.methods.vcl, pt.methods.streaming_vb)
    found = {method.__name__: pvi(method(NEWTON), LOGISTIC, FULL, CLASSES, rounds=2) for method in once}
    method = pt.methods.sequential(NEWTON)
    found["pooled"] = pvi(method, LOGISTIC, FULL, CLASSES.pooled(), rounds=2)
    found["alone"] = pvi(method, LOGISTIC, FULL, CLASSES.only("client 1"), rounds=2)
    return named(**found)


def resumed():
    """From a checkpoint: asynchronously, with answers under way, and with an aggregation that remembers."""
    methods = {
        "under_way": pt.methods.asynchronous(NEWTON, damping=0.5),
        "memory": pt.methods.bayesian_admm(NEWTON, 0.7, None, 1.0, participants=2),
    }
    found = {}
    for name, method in methods.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.npz"
            for rounds in (2, 4):
                found[name] = pvi(
                    method, LOGISTIC, FULL, CLASSES, rounds=rounds, speeds=(1.0, 1.7, 0.4), store=pt.Checkpoint(path, 1)
                )
    return named(**found)


def membership():
    """Clients that leave, retire, come back and join, in a state and in a run over a link."""
    method = pt.methods.synchronous(NEWTON, damping=ONE_OVER_M)
    state = fit(method, LOGISTIC, FULL, CLASSES).state
    changes = {
        "leave": leave(state, "client 1", method.aggregation),
        "retire": retire(state, "client 1", method.aggregation),
        "back": join(leave(state, "client 1", method.aggregation), "client 1", method.aggregation),
        "new": join(state, "client 3", method.aggregation),
    }
    asked = (("client 0", "leave"), ("client 2", "retire"))
    return named(
        **{name: numbers_of_state(changed) for name, changed in changes.items()},
        link=remote(method, LOGISTIC, FULL, CLASSES, asked=asked),
    )


def predictions():
    """Metrics on the way, and what a posterior says at the end."""

    def classified(posterior):
        probabilities, y = posterior.predict_proba(X), LABELS.astype(int)
        measures = {"error": pt.metrics.error, "nll": pt.metrics.negative_log_likelihood, "brier": pt.metrics.brier}
        return {name: measure(probabilities, y) for name, measure in measures.items()}

    def regressed(posterior):
        return {"rmse": pt.metrics.root_mean_squared_error(posterior.predict(X), REAL)}

    found = {
        "classes": fit(pt.methods.sequential(NEWTON), LOGISTIC, FULL, CLASSES, metrics=classified, every=2),
        "numbers": fit(pt.methods.sequential(pt.Conjugate()), LINEAR, FULL, NUMBERS, metrics=regressed),
    }
    tables = {"classes": pt.Table(X, LABELS), "numbers": pt.Table(X, REAL)}
    said = {
        name: {
            **leaves("mean", result.posterior.mean),
            **leaves("sd", result.posterior.sd),
            **leaves("interval", result.posterior.interval(0.9)),
            **leaves("draws", result.posterior.sample(5, seed=2)),
            **leaves("response", result.posterior.predict(X)),
            **leaves("density", result.posterior.log_predictive_density(tables[name], draws=20)),
        }
        for name, result in found.items()
    }
    return named(**{name: numbers_of(result) | said[name] for name, result in found.items()})


def single_precision():
    def single(tree):
        return jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)

    parts = clients(single(pt.Table(X, LABELS)))
    return named(
        newton=pvi(pt.methods.sequential(NEWTON), LOGISTIC, single(FULL), parts, rounds=2),
        gradient=pvi(
            pt.methods.synchronous(pt.Gradient(max_steps=10), damping=ONE_OVER_M),
            LOGISTIC,
            single(MEAN_FIELD),
            parts,
            rounds=2,
        ),
    )


class Inflating:
    """A client's end that claims far more than it has seen in one of its answers to a task, the first."""

    def __init__(self, site):
        self.site, self.done = site, False

    def handle(self, message):
        answer = self.site.handle(message)
        if message.header["kind"] != "update" or self.done:
            return answer
        self.done = True
        return answer._replace(arrays={name: 1e4 * array for name, array in answer.arrays.items()})


def numbers_of_message(message):
    """Its arrays, and all numbers of its header."""
    header = {
        jax.tree_util.keystr(path): np.asarray(value)
        for path, value in jax.tree_util.tree_leaves_with_path(message.header)
        if not isinstance(value, str)
    }
    return leaves("array", list(message.arrays.values())) | {f"header{name}": value for name, value in header.items()}


LIMITS = pt.Rules(deadline=10.0, quorum=0.5, until=5000.0)


def serve(method, model, prior, link, rows, ledger, limits, every, **options):
    """One life of a server."""
    engine, monitor = RemoteEngine(link, rows, ledger), pt.Monitor(every=every, progress=False)
    kept = {"store": ledger, "requests": ledger}
    return pt.run(method, model, prior, engine=engine, rules=limits, monitor=monitor, **kept, **options)


def remote(method, model, prior, parts, ends=None, rules=None, weather=None, asked=(), every=0, **options):
    """A run over a link: its numbers, those of all messages in order, and those of the ledger's state at the end.

    Changes of membership that are `asked` for are made when it goes on from the ledger, for as many rounds again.
    """
    sites = {
        name: ClientEndpoint(name, method.recipe(model), prior, shard)
        for name, shard in zip(parts.names, parts.shards, strict=True)
    }
    link = FaultyLink(
        {name: (ends or {}).get(name, lambda site: site)(site) for name, site in sites.items()}, **weather or {}
    )
    rows, limits = dict(zip(parts.names, parts.sizes, strict=True)), LIMITS._replace(**rules or {})
    options = {"rounds": 3, "tolerance": None} | options
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ledger"
        result = serve(method, model, prior, link, rows, pt.Ledger(path, durable=False), limits, every, **options)
        if asked:
            again = pt.Ledger(path, durable=False)
            for name, change in asked:
                again.request(name, change)
            options["rounds"] *= 2
            result = serve(method, model, prior, link, rows, again, limits, every, **options)
        kept, _ = pt.Ledger(path, durable=False).load(init(prior, parts.names, 0, method.aggregation))
    messages = {f"message {place}": numbers_of_message(unpack(data)) for place, data in enumerate(link.sent)}
    return numbers_of(result) | named(**messages, ledger=numbers_of_state(kept))


def lossy_link():
    """A link that loses, repeats, delays and reorders, and a fair one on which the free energy is asked for."""
    rough = {"seed": 4, "loss": 0.2, "repeat": 0.2, "delay": 3.0, "crash": 0.05}
    one_by_one, together = (
        pt.methods.asynchronous(NEWTON, damping=0.5),
        pt.methods.synchronous(NEWTON, damping=ONE_OVER_M),
    )
    return named(
        rough=remote(one_by_one, LOGISTIC, FULL, CLASSES, weather=rough, rounds=4),
        fair=remote(together, LOGISTIC, FULL, CLASSES, every=1, rounds=2),
    )


def attacked():
    """An answer that claims too much is refused once; its client's next ones count."""
    bounds = pt.Admission(prominence=1e4, change=1000.0, dominance=20.0, deficit=0.05)
    method = pt.methods.synchronous(pt.Conjugate(), damping=0.7)
    return remote(method, LINEAR, FULL, NUMBERS, {"client 1": Inflating}, {"admission": bounds})


RUNS = (
    *(sequential, synchronous, random_subset, asynchronous, backtracking, temperature, starts, stopping),
    *(anticipating, averaging),
    *(server_optimisers, power_ep, moments, mixture, positive_numbers, unknown_noise, network, learning, committees),
    *(resumed, membership, predictions),
    *(single_precision, lossy_link, attacked),
)
