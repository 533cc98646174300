"""A valid call of everything that is public: by its name, the function, and an argument's name for each value."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optax

import partita as pt
from partita.results.mean_field import MeanFieldCheck

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 2))
Y = (X[:, 0] > 0).astype(float)
TABLE = pt.Table(X, Y)
THIRDS = np.array_split(np.arange(12), 3)
PARTS = pt.split(TABLE, THIRDS)
PRIOR, MODEL, METHOD = pt.MeanFieldGaussian.standard_normal(2), pt.LogisticRegression(), pt.methods.sequential()
FRAME = {"columns": {"age": X[:, 0], "sex": np.array(["f", "m"] * 6)}, "y": Y, "levels": {"sex": ("f", "m")}}
POSTERIOR = pt.Posterior(MODEL, PRIOR)
START = pt.MeanFieldGaussian.standard_normal(2, 0.5)
COMMON = {"temperature": 1.0, "restart": False, "trust_region": 1.0, "learn": (), "how": "coordinate"}
COMMON |= {"learning": None}
SOLVED = {"solver": pt.Newton(), "start": START} | COMMON


class Later(NamedTuple):
    """A valid value that takes a fit to make."""

    made: Callable[[], Any]


@functools.cache
def two_fits():
    """One fit under two names."""
    fit = pt.fit("died ~ age", {"died": Y, "age": X[:, 1]}, family="bernoulli", rounds=1)
    return {"a": fit, "b": fit}


@functools.cache
def stream():
    """A stream of two batches."""
    made = pt.Stream(METHOD, MODEL, PRIOR, draws=2)
    for place in (0, 1):
        made = made.add(pt.Table(X[THIRDS[place]], Y[THIRDS[place]]), f"client {place}", rounds=1)
    return made


def call(name, /, **changed):
    """A call of what is public, valid but for the arguments that are changed."""
    function, valid = CALLS[name]
    given = {**valid, **changed}
    return function(**{key: value.made() if isinstance(value, Later) else value for key, value in given.items()})


def in_groups(**given):
    """A check of rows in groups."""
    engine = pt.LocalEngine(pt.federate([pt.data.GroupedTable(**given)]))
    model = pt.models.GroupEffects(pt.LogisticRegression())
    engine.check(pt.methods.sequential(pt.solvers.FixedPoint()).recipe(model), pt.FullGaussian.standard_normal(3))


def waiting(x, y):
    """A NumPyro model."""
    import numpyro
    import numpyro.distributions as dist

    with numpyro.plate("groups", 2):
        b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def fitted(x, y, weights):
    """The rows of one client, looked at by the engine as before a run."""
    parts = pt.federate([pt.Table(x, y)], weights=[weights])
    pt.LocalEngine(parts).check(METHOD.recipe(MODEL), PRIOR)


def of(cls, name):
    """A constructor by its name, which is none of the class itself."""
    return getattr(cls, name)


CALLS = {
    "Admission": (
        lambda **given: pt.Rules(admission=pt.Admission(**given)).check(pt.Damped()),
        {"change": 1.0, "dominance": 1.0, "prominence": 1.0, "deficit": 0.0},
    ),
    "Asynchronous": (pt.Asynchronous, {}),
    "Adaptive": (pt.Adaptive, {"first": 0.5, "largest": 0.8}),
    "Backtracking": (pt.Backtracking, {"damping": 0.5, "monitor_free_energy": True, "halvings": 3}),
    "Cavity": (pt.Cavity, {}),
    "Checkpoint": (pt.Checkpoint, {"path": "run.npz", "every": 3}),
    "Conjugate": (pt.Conjugate, {"max_steps": 2, "tolerance": 1e-9, "halvings": 3}),
    "Damped": (pt.Damped, {"damping": 0.5}),
    "Frame.build": (pt.Frame.build, FRAME | {"labels": None}),
    "FullGaussian.from_mean_covariance": (
        of(pt.FullGaussian, "from_mean_covariance"),
        {"mean": np.zeros(2), "covariance": np.eye(2)},
    ),
    "FullGaussian.standard_normal": (pt.FullGaussian.standard_normal, {"like": 2, "scale": 1.0}),
    "Gradient": (
        pt.Gradient,
        {
            "optimiser": optax.sgd,
            "learning_rate": 0.1,
            "max_steps": 3,
            "window": 2,
            "patience": 1,
            "tolerance": 0.1,
            "watch": "ell",
            "batch_size": 2,
            "coordinates": "natural",
            "keep_best": False,
        },
    ),
    "Ledger": (pt.Ledger, {"path": "ledger.db", "durable": False}),
    "Limits": (pt.Limits, {"rows": 20, "cell": 3}),
    "LinearRegression": (pt.LinearRegression, {"noise": 1.0, "expectation": pt.expectations.Analytic()}),
    "LocalEngine": (pt.LocalEngine, {"partition": PARTS, "speeds": [1.0, 2.0, 1.0], "threads": 1, "together": 2}),
    "LogDensity": (pt.LogDensity, {"function": min, "expectation": pt.expectations.MonteCarlo()}),
    "LogisticRegression": (pt.LogisticRegression, {"expectation": pt.expectations.GaussHermite(), "slope": 1.0}),
    "MeanFieldGaussian.from_mean_sd": (pt.MeanFieldGaussian.from_mean_sd, {"mean": np.zeros(2), "sd": np.ones(2)}),
    "MeanFieldGaussian.standard_normal": (pt.MeanFieldGaussian.standard_normal, {"like": 2, "scale": 1.0}),
    "NearestMeanField.from_mean_sd": (
        of(pt.NearestMeanField, "from_mean_sd"),
        {"mean": np.zeros(2), "sd": np.ones(2)},
    ),
    "MeanFieldGaussian.tight": (
        pt.MeanFieldGaussian.tight,
        {"like": 2, "seed": 0, "spread": 0.1, "variance": 0.1},
    ),
    "Method": (
        pt.Method,
        {
            "solver": pt.Newton(),
            "schedule": pt.Sequential(),
            "aggregation": pt.Damped(),
            "context": pt.Cavity(),
            "trust_region": 1.0,
            "start": START,
            "restart": True,
            "temperature": 1.0,
            "passes": 1,
            "learning": None,
        },
    ),
    "Monitor": (pt.Monitor, {"metrics": None, "every": 1, "progress": False, "label": "PVI", "callbacks": ()}),
    "Newton": (pt.Newton, {"max_steps": 2, "tolerance": 1e-9, "halvings": 3, "together": 5}),
    "NoDeletion": (pt.NoDeletion, {}),
    "OutsidePrior": (
        pt.OutsidePrior,
        {"density": pt.LogDensity(lambda theta, row: -theta @ theta), "base": PRIOR},
    ),
    "Partition.only": (PARTS.only, {"name": "client 0"}),
    "PoissonRegression": (pt.PoissonRegression, {"expectation": pt.expectations.Analytic()}),
    "Posterior": (pt.Posterior, {"model": MODEL, "q": PRIOR, "hyper": {}, "mean_field": MeanFieldCheck(), "names": ()}),
    "Posterior.interval": (POSTERIOR.interval, {"mass": 0.9}),
    "Posterior.log_predictive_density": (
        lambda x, y, draws, seed: POSTERIOR.log_predictive_density(pt.Table(x, y), draws, seed),
        {"x": X, "y": Y, "draws": 2, "seed": 0},
    ),
    "Posterior.predict": (POSTERIOR.predict, {"x": X, "how": "closed", "draws": 2, "seed": 0}),
    "early_stopping.EarlyStopping": (
        lambda **given: pt.Rules(early=pt.early_stopping.EarlyStopping(**given)).check(pt.Damped()),
        {"window": 3, "patience": 2, "tolerance": 0.1},
    ),
    "Posterior.predict_proba": (POSTERIOR.predict_proba, {"x": X, "how": "closed", "draws": 2, "seed": 0}),
    "Posterior.sample": (POSTERIOR.sample, {"draws": 2, "seed": 0}),
    "Posterior.draws": (POSTERIOR.draws, {"draws": 8, "seed": 0}),
    "Posterior.to_arviz": (POSTERIOR.to_arviz, {"draws": 16, "seed": 0}),
    "Posterior.summary": (POSTERIOR.summary, {"names": ["age", "dose"], "mass": 0.9}),
    "Prior": (pt.Prior, {"rescaled": True}),
    "Proximal": (pt.Proximal, {"penalty": 1.0}),
    "Rules": (
        lambda **given: pt.Rules(**given).check(pt.Damped()),
        {
            "deadline": 1.0,
            "quorum": 0.5,
            "pause": 1.0,
            "until": 9.0,
            "admission": pt.Admission(),
            "early": pt.early_stopping.EarlyStopping(),
        },
    ),
    "Sequential": (pt.Sequential, {"order": "residual", "measure": pt.measures.NaturalNorm()}),
    "measures.Divergence": (pt.measures.Divergence, {}),
    "measures.NaturalNorm": (pt.measures.NaturalNorm, {}),
    "measures.PredictiveChange": (
        lambda **given: pt.methods.sequential(order="residual", measure=pt.measures.PredictiveChange(**given)).check(
            PRIOR, 3
        ),
        {"model": MODEL, "x": X, "how": "closed", "draws": 2},
    ),
    "SplitPrior": (pt.SplitPrior, {}),
    "Stream": (
        pt.Stream,
        {
            "method": METHOD,
            "model": MODEL,
            "prior": PRIOR,
            "seed": 0,
            "remember": 0.9,
            "keep": True,
            "draws": 2,
            "state": None,
            "batches": (),
            "result": None,
        },
    ),
    "Stream.add": (
        lambda x, y, **given: stream().add(pt.Table(x, y), **given),
        {"x": X, "y": Y, "name": "second", "weights": np.ones(12), "rounds": 1, "tolerance": 1e-3},
    ),
    "Stream.load": (lambda path: [stream().save(path), stream().load(path)], {"path": "run.npz"}),
    "Stream.revisit": (
        lambda **given: stream().revisit(**given),
        {"partition": PARTS.only("client 0"), "rounds": 1, "tolerance": 1e-3},
    ),
    "Stream.without": (
        lambda **given: stream().without(**given),
        {"name": "client 0", "partition": PARTS.only("client 1"), "rounds": 1, "tolerance": 1e-3},
    ),
    "Synchronous": (pt.Synchronous, {}),
    "Table": (fitted, {"x": X, "y": Y, "weights": np.ones(12)}),
    "compare": (lambda **given: pt.compare(**given), {"fits": Later(two_fits), "draws": 60, "seed": 0}),
    "federate": (
        pt.federate,
        {"clients": [TABLE, TABLE], "weights": [np.ones(12)] * 2, "names": ["a", "b"], "buckets": 1},
    ),
    "fit": (
        pt.fit,
        {
            "formula": "died ~ age",
            "data": {"died": Y, "age": X[:, 0], "site": np.array(["a", "b"] * 6), "weight": np.ones(12)},
            "family": "bernoulli",
            "sites": "site",
            "prior": "normal(0, 1)",
            "covariance": "full",
            "weights": "weight",
            "positive": None,
            "trials": None,
            "event": None,
            "link": None,
            "noise": None,
            "cuts": None,
            "levels": None,
            "rounds": 1,
            "engine": pt.LocalEngine,
            "tolerance": 1e-6,
        },
    ),
    "from_apply": (
        pt.from_apply,
        {
            "apply": lambda w, x: x @ w,
            "parameters": np.ones(2),
            "loss": lambda f, y: (f - y) ** 2 / 2,
            "response": abs,
            "expectation": pt.expectations.MonteCarlo(),
        },
    ),
    "from_numpyro": (
        pt.from_numpyro,
        {
            "model": waiting,
            "rows": {"x": X, "y": Y},
            "shared": ["groups"],
            "local": (),
            "expectation": pt.expectations.CommonDraws(),
        },
    ),
    "prior": (
        pt.prior,
        {"text": "horseshoe(0.1); a: normal(0, 1)", "names": ["a", "b"], "family": pt.MeanFieldGaussian.from_mean_sd},
    ),
    "run": (
        pt.run,
        {
            "method": METHOD,
            "model": MODEL,
            "prior": PRIOR,
            "partition": PARTS,
            "rounds": 1,
            "communications": 3,
            "tolerance": 1e-3,
            "seed": 0,
            "state": None,
            "engine": None,
            "rules": None,
            "store": None,
            "requests": None,
            "monitor": None,
        },
    ),
    "split": (pt.split, {"data": TABLE, "indices": THIRDS, "names": ["a", "b", "c"], "drop": False}),
    "with_intercept": (pt.with_intercept, {"x": X}),
    "aggregation.Amortised": (pt.aggregation.Amortised, {"features": X, "ridge": 0.5}),
    "aggregation.Anticipating": (
        pt.aggregation.Anticipating,
        {"aggregation": pt.Damped(), "estimate": pt.aggregation.LastFactor()},
    ),
    "aggregation.Averaging": (
        pt.aggregation.Averaging,
        {"penalty": 1.0, "mixing": 0.5, "step": 1.0, "over": "all", "start": START},
    ),
    "aggregation.DoubleLoop": (pt.aggregation.DoubleLoop, {"alpha": 0.5}),
    "aggregation.GeometricMean": (pt.aggregation.GeometricMean, {}),
    "aggregation.Incremental": (
        pt.aggregation.Incremental,
        {"optimiser": optax.sgd, "learning_rate": 0.1, "gain": 0.5, "start": START},
    ),
    "aggregation.LastFactor": (pt.aggregation.LastFactor, {}),
    "aggregation.RobbinsMonro": (pt.aggregation.RobbinsMonro, {"first": 0.5, "delay": 2.0, "power": 0.75}),
    "aggregation.ServerOptimiser": (
        pt.aggregation.ServerOptimiser,
        {"optimiser": optax.sgd, "learning_rate": 0.1, "start": START},
    ),
    "aggregation.Shared": (pt.aggregation.Shared, {"damping": 0.5}),
    "aggregation.StochasticLoop": (pt.aggregation.StochasticLoop, {"alpha": 0.5, "step": 0.1, "outer": 0.1}),
    "aggregation.check_damping": (pt.aggregation.check_damping, {"damping": 0.5}),
    "data.beta_kappa": (pt.data.beta_kappa, {"y": Y, "clients": 2, "beta": 0.0, "kappa": 0.0}),
    "data.by_column": (pt.data.by_column, {"values": np.array(["a", "b"] * 6)}),
    "data.GroupedTable": (
        in_groups,
        {"x": X, "y": Y, "z": np.ones((12, 1)), "group": np.arange(12) // 3, "offset": np.zeros(12)},
    ),
    "data.equal_random": (pt.data.equal_random, {"rows": 12, "clients": 3, "seed": 0}),
    "data.k_means": (pt.data.k_means, {"x": X, "clients": 2, "seed": 0}),
    "data.label_shards": (pt.data.label_shards, {"y": Y, "clients": 2, "shards": 2, "seed": 0}),
    "expectations.Analytic": (pt.expectations.Analytic, {}),
    "expectations.Assignments": (pt.expectations.Assignments, {}),
    "expectations.CommonDraws": (pt.expectations.CommonDraws, {"draws": 16}),
    "expectations.GaussHermite": (pt.expectations.GaussHermite, {"points": 5}),
    "expectations.GridQuadrature": (pt.expectations.GridQuadrature, {"points": 5}),
    "expectations.LocalEffects": (pt.expectations.LocalEffects, {"max_steps": 10, "tolerance": 1e-9}),
    "expectations.LocalReparameterisation": (pt.expectations.LocalReparameterisation, {"samples": 2}),
    "expectations.MonteCarlo": (pt.expectations.MonteCarlo, {"samples": 2}),
    "expectations.Points": (pt.expectations.Points, {}),
    "expectations.PredictorQuadrature": (pt.expectations.PredictorQuadrature, {"nodes": 16}),
    "expectations.Regression": (pt.expectations.Regression, {"samples": 50}),
    "families.AnyForm.of": (
        pt.families.AnyForm.of,
        {"form": pt.families.Mixture.normal(2, 1), "visits": 2, "draws": 8, "shift": 1},
    ),
    "families.Dirichlet.from_concentration": (
        pt.families.Dirichlet.from_concentration,
        {"concentration": np.ones(3)},
    ),
    "families.BlockGaussian.from_mean_covariances": (
        pt.families.BlockGaussian.from_mean_covariances,
        {"mean": np.zeros(3), "covariances": [np.eye(2), np.eye(1)]},
    ),
    "families.BlockGaussian.from_mean_sd": (
        pt.families.BlockGaussian.from_mean_sd,
        {"mean": np.zeros(3), "sd": np.ones(3), "sizes": [2, 1]},
    ),
    "families.BlockGaussian.standard_normal": (
        pt.families.BlockGaussian.standard_normal,
        {"sizes": [2, 1], "scale": 1.0},
    ),
    "families.Flow.of": (
        pt.families.Flow.of,
        {"base": pt.families.Mixture.normal(2, 1), "layers": 2, "units": 3, "seed": 1},
    ),
    "families.Gamma.from_shape_rate": (pt.families.Gamma.from_shape_rate, {"shape": 2.0, "rate": 1.0}),
    "families.InverseGamma.from_shape_scale": (
        pt.families.InverseGamma.from_shape_scale,
        {"shape": 2.0, "scale": 1.0},
    ),
    "families.LogNormal.from_median_sd": (pt.families.LogNormal.from_median_sd, {"median": 2.0, "log_sd": 1.0}),
    "families.LogNormal.of": (pt.families.LogNormal.of, {"original": PRIOR}),
    "families.Mixture.from_means_sd": (
        pt.families.Mixture.from_means_sd,
        {"means": np.ones((3, 2)), "sd": 0.5},
    ),
    "families.Mixture.normal": (pt.families.Mixture.normal, {"size": 2, "components": 3, "sd": 0.5}),
    "families.NormalGamma.from_parameters": (
        pt.families.NormalGamma.from_parameters,
        {"mean": np.zeros(2), "covariance": np.eye(2), "shape": 2.0, "rate": 1.0},
    ),
    "families.Product": (pt.families.Product, {"components": {"a": PRIOR}}),
    "learning.Ascent": (pt.learning.Ascent, {"names": ("slope",), "collapsed": True, "optimiser": optax.sgd(0.1)}),
    "learning.Kept": (pt.learning.Kept, {"names": ("slope",), "optimiser": optax.sgd(0.1)}),
    "learning.Stochastic": (pt.learning.Stochastic, {"names": ("slope",), "optimiser": optax.sgd(0.1)}),
    "learning.learning_by_name": (pt.learning.learning_by_name, {"how": "collapsed", "names": ("slope",)}),
    "methods.assumed_density_filtering": (
        pt.methods.assumed_density_filtering,
        {"alpha": 0.5, "order": "fixed", "start": START} | COMMON,
    ),
    "methods.asynchronous": (pt.methods.asynchronous, SOLVED | {"damping": 0.5}),
    "methods.bayesian_admm": (
        pt.methods.bayesian_admm,
        SOLVED | {"penalty": 1.0, "mixing": 0.5, "step": 1.0, "participants": 2, "over": "all"},
    ),
    "methods.bcm_same": (pt.methods.bcm_same, SOLVED),
    "methods.bcm_split": (pt.methods.bcm_split, SOLVED),
    "methods.biased_global_vi": (pt.methods.biased_global_vi, SOLVED | {"order": "fixed"}),
    "methods.double_loop": (pt.methods.double_loop, {"alpha": 0.5, "points": 5} | COMMON),
    "methods.expectation_propagation": (
        pt.methods.expectation_propagation,
        {"schedule": "synchronous", "damping": 0.5, "passes": 2, "start": START} | COMMON,
    ),
    "methods.fit": (
        pt.methods.fit,
        {
            "name": "sequential",
            "model": MODEL,
            "prior": PRIOR,
            "partition": PARTS,
            "settings": {"damping": 0.5},
            "learn": (),
            "how": "coordinate",
            "rounds": 1,
        },
    ),
    "methods.global_vi": (
        pt.methods.global_vi,
        {"optimiser": optax.sgd, "learning_rate": 0.1, "start": START} | COMMON,
    ),
    "methods.incremental_vi": (
        pt.methods.incremental_vi,
        {"optimiser": optax.sgd, "learning_rate": 0.1, "gain": 0.5, "participants": 1, "start": START} | COMMON,
    ),
    "methods.named": (pt.methods.named, {"name": "sequential", "damping": 0.5}),
    "methods.power_ep": (
        pt.methods.power_ep,
        {"alpha": 0.5, "schedule": "synchronous", "damping": 0.5, "passes": 2, "start": START} | COMMON,
    ),
    "methods.sequential": (
        pt.methods.sequential,
        SOLVED | {"order": "fixed", "damping": 0.5, "backtracking": False, "anticipating": True},
    ),
    "methods.settings_of": (pt.methods.settings_of, {"name": "sequential"}),
    "methods.snep": (
        pt.methods.snep,
        {"alpha": 0.5, "samples": 5, "step": 0.1, "outer": 0.1, "participants": 2} | COMMON,
    ),
    "methods.stochastic_fixed_point": (
        pt.methods.stochastic_fixed_point,
        {"damping": 0.5, "order": "fixed", "participants": 2, "batch_size": 3, "start": START} | COMMON,
    ),
    "methods.stochastic_global_vi": (
        pt.methods.stochastic_global_vi,
        {"optimiser": optax.sgd, "learning_rate": 0.1, "order": "fixed", "start": START} | COMMON,
    ),
    "methods.stochastic_local": (
        pt.methods.stochastic_local,
        {"damping": 0.5, "order": "fixed", "participants": 2, "start": START} | COMMON,
    ),
    "methods.stochastic_power_ep": (
        pt.methods.stochastic_power_ep,
        {"alpha": 0.5, "damping": 0.5, "order": "fixed", "participants": 1, "rows": True, "start": START} | COMMON,
    ),
    "methods.stochastic_synchronous": (
        pt.methods.stochastic_synchronous,
        SOLVED | {"participants": 2, "damping": 0.5},
    ),
    "methods.streaming_vb": (pt.methods.streaming_vb, SOLVED | {"order": "fixed"}),
    "methods.synchronous": (pt.methods.synchronous, SOLVED | {"damping": 0.5, "backtracking": True}),
    "methods.vcl": (pt.methods.vcl, SOLVED | {"order": "fixed"}),
    "metrics.brier": (pt.metrics.brier, {"probabilities": Y, "y": Y}),
    "metrics.calibration_error": (pt.metrics.calibration_error, {"probabilities": Y, "y": Y, "bins": 3}),
    "metrics.error": (pt.metrics.error, {"probabilities": Y, "y": Y}),
    "metrics.negative_log_likelihood": (pt.metrics.negative_log_likelihood, {"probabilities": Y, "y": Y}),
    "metrics.pruned": (pt.metrics.pruned, {"q": PRIOR, "prior": PRIOR, "threshold": 0.1}),
    "metrics.root_mean_squared_error": (pt.metrics.root_mean_squared_error, {"predictions": Y, "y": Y}),
    "models.GroupEffects": (
        pt.models.GroupEffects,
        {
            "likelihood": pt.LogisticRegression(),
            "effects": 1,
            "nodes": 5,
            "expectation": pt.expectations.LocalEffects(),
        },
    ),
    "models.GaussianMixture": (pt.models.GaussianMixture, {"expectation": pt.expectations.Assignments()}),
    "models.NetworkClassifier": (
        pt.models.NetworkClassifier,
        {"widths": (2, 2), "expectation": pt.expectations.MonteCarlo()},
    ),
    "models.NetworkRegressor": (
        pt.models.NetworkRegressor,
        {"widths": (2, 1), "noise": 1.0, "expectation": pt.expectations.MonteCarlo()},
    ),
    "models.ProbitRegression": (
        pt.models.ProbitRegression,
        {"expectation": pt.expectations.GaussHermite(), "slope": 1.0},
    ),
    "models.UnknownNoiseRegression": (
        pt.models.UnknownNoiseRegression,
        {"expectation": pt.expectations.Analytic()},
    ),
    "schedules.RandomSubset": (pt.schedules.RandomSubset, {"size": 2}),
    "solvers.AlphaDivergence": (
        pt.solvers.AlphaDivergence,
        {"max_steps": 2, "tolerance": 0.1, "memory": 3, "alpha": 0.5, "rule": pt.expectations.GridQuadrature()},
    ),
    "solvers.Blockwise": (
        pt.solvers.Blockwise,
        {"solver": pt.Newton(), "blocks": (("precision",),), "max_steps": 2, "tolerance": 0.1},
    ),
    "solvers.ConjugateDirections": (
        pt.solvers.ConjugateDirections,
        {"max_steps": 2, "tolerance": 0.1, "halvings": 2},
    ),
    "solvers.FixedPoint": (
        pt.solvers.FixedPoint,
        {"damping": 0.5, "max_steps": 2, "tolerance": 0.1, "backtrack": True, "halvings": 2, "batch_size": None}
        | {"fresh": False},
    ),
    "solvers.InFamily": (pt.solvers.InFamily, {}),
    "solvers.InPredictor": (pt.solvers.InPredictor, {}),
    "solvers.LBFGS": (pt.solvers.LBFGS, {"max_steps": 2, "tolerance": 0.1, "memory": 3}),
    "solvers.LocalFixedPoint": (
        pt.solvers.LocalFixedPoint,
        {"groups": 2, "at_once": 1, "damping": 0.5, "factors": pt.solvers.InFamily(), "shuffled": True}
        | {"max_steps": 2, "tolerance": 0.1},
    ),
    "solvers.ModeFixedPoint": (
        pt.solvers.ModeFixedPoint,
        {"damping": 0.5, "max_steps": 2, "tolerance": 0.1, "backtrack": True, "halvings": 2, "batch_size": None}
        | {"fresh": False},
    ),
    "solvers.MomentMatching": (
        pt.solvers.MomentMatching,
        {
            "alpha": 0.5,
            "rule": pt.expectations.GridQuadrature(),
            "max_steps": 2,
            "tolerance": 0.1,
            "step_size": 0.5,
        },
    ),
    "solvers.NaturalGradient": (pt.solvers.NaturalGradient, {"max_steps": 1, "batch_size": 3}),
    "solvers.PowerEP": (
        pt.solvers.PowerEP,
        {"alpha": 0.5, "damping": 0.5, "max_steps": 2, "tolerance": 0.1, "in_turn": True, "points": 5},
    ),
    "solvers.ProximalPoint": (
        pt.solvers.ProximalPoint,
        {"solver": pt.Newton(), "rate": 0.5, "max_steps": 2, "tolerance": 0.1},
    ),
    "solvers.named": (pt.solvers.named, {"kind": "newton", "settings": {"max_steps": 2}, "what": "solver"}),
}
"""What has a dot and a class before it is a constructor or a method of that class."""

REASONS = {
    "what others inherit, which cannot be made": (
        "Aggregation Context Engine Family Model Schedule Solver aggregation.FactorEstimate expectations.Expectation "
        "measures.Measure "
        "expectations.Sampled families.Gaussian families.Transformed learning.Learning models.GeneralisedLinear "
        "models.Network"
    ),
    "made by a run or from files, not by users": (
        "Fit History Partition Result Status aggregation.Aggregated aggregation.Iterate data.Frames data.Shard "
        "engines.Answer engines.EventLog engines.Failure engines.Task expectations.Derivatives expectations.Estimate "
        "learning.LearningStep learning.LearningView learning.RpropState schedules.ScheduleView solvers.Outcome "
        "solvers.Solution datasets.Dataset datasets.encoded"
    ),
    "natural parameters, as compiled programs make them; users have the constructors above": (
        "FullGaussian MeanFieldGaussian NearestMeanField families.AnyForm families.BlockGaussian families.Dirichlet "
        "families.Flow families.Gamma families.InverseGamma families.LogNormal families.Mixture families.NormalGamma "
        "Frame"
    ),
    "as scikit-learn has it: nothing is checked before fit, where it checks rows by itself": (
        "PartitionedClassifier PartitionedPoissonRegressor PartitionedRegressor"
    ),
    "without arguments": (
        "datasets.adult datasets.adult_frames datasets.adult_table datasets.breast_cancer datasets.digits"
    ),
    "the errors themselves": (
        "InputError errors.DamagedFileError errors.DataError errors.DiskError errors.FederationError "
        "errors.MissingExtraError errors.SettingsError errors.exit_with_sentence errors.unknown"
    ),
    "for authors of new members, with an AssertionError that says what is violated": (
        "checks.bound checks.check_aggregation checks.check_engine checks.check_family checks.check_invariant "
        "checks.check_model checks.check_schedule checks.check_solver"
    ),
    "what the server keeps of a run": "early_stopping.Flatness early_stopping.reported",
    "a function within compiled programs or optimisers": (
        "aggregation.agile_adam expectations.root families.inner learning.gain learning.rprop"
    ),
    "an annotation": (
        "aggregation.FreeEnergy aggregation.Report aggregation.Mean learning.How methods.Common methods.Optimiser "
        "methods.Start metrics.Probabilities partitioners.Indices schedules.Order"
    ),
}
EXCEPT = {name: reason for reason, names in REASONS.items() for name in names.split()}
"""What is public and is not called with anything, and why."""
