"""What users get wrong is refused in one sentence, with the culprit and the remedy."""

import jax
import numpy as np
import pytest
import scipy.sparse

import partita as pt
from partita_experiments.config import Run

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 2))
Y = (X[:, 0] > 0).astype(float)
TABLE = pt.Table(X, Y)
THIRDS = np.array_split(np.arange(12), 3)
PARTS = pt.split(TABLE, THIRDS)
PRIOR, MODEL, METHOD = pt.MeanFieldGaussian.standard_normal(2), pt.LogisticRegression(), pt.methods.sequential()
WARD = np.array(["a", "b", "c"] * 4)


def fit(**changes):
    settings = {"method": METHOD, "model": MODEL, "prior": PRIOR, "partition": PARTS, "rounds": 1} | changes
    return pt.run(**settings)


def counted(largest):
    """A run in which one count is the largest."""
    counts = np.where(np.arange(12) == 3, largest, 2.0)
    return fit(model=pt.PoissonRegression(), partition=pt.split(pt.Table(X, counts), THIRDS), rounds=20)


def outlying(value):
    """A run in which one input is an outlier."""
    x = X.copy()
    x[4, 1] = value
    return fit(partition=pt.split(pt.Table(x, Y), THIRDS))


MISTAKES = {
    "a column of sites too short": (
        lambda: pt.split(TABLE, *pt.partitioners.by_column(WARD[:9])),
        "3 rows belong to no",
    ),
    "a column of sites too long": (
        lambda: pt.split(TABLE, *pt.partitioners.by_column([*WARD, "a"])),
        "There is no row 12",
    ),
    "overlapping indices": (lambda: pt.split(TABLE, [np.arange(7), np.arange(6, 12)]), "Row 6 is given twice"),
    "a negative index": (lambda: pt.split(TABLE, [np.arange(11), [-1]]), "There is no row -1"),
    "indices that are not whole": (lambda: pt.split(TABLE, [np.arange(12) + 0.5]), "whole numbers"),
    "a mask of another length": (lambda: pt.split(TABLE, [np.ones(5, bool)]), "whole numbers"),
    "negative noise": (lambda: pt.LinearRegression(-1.0), "noise must be finite and above 0"),
    "no noise": (lambda: pt.LinearRegression(0.0), "noise must be finite and above 0"),
    "a negative prior scale": (lambda: pt.FullGaussian.standard_normal(2, -1.0), "must be finite and above 0"),
    "a negative mean-field scale": (
        lambda: pt.MeanFieldGaussian.standard_normal(2, -1.0),
        "must be finite and above 0",
    ),
    "slope 0": (lambda: pt.LogisticRegression(slope=0.0), "slope must be finite and above 0"),
    "a negative slope": (lambda: pt.LogisticRegression(slope=-1.0), "slope must be finite and above 0"),
    "complex inputs": (lambda: pt.federate([pt.Table(X + 1j, Y)]), "complex numbers"),
    "text labels": (lambda: pt.federate([pt.Table(X, np.where(Y > 0, "yes", "no"))]), "text"),
    "a sparse matrix": (lambda: pt.federate([pt.Table(scipy.sparse.csr_array(X), Y)]), "sparse"),
    "rounds as text": (lambda: fit(rounds="5"), "rounds must be a number, not the text '5'"),
    "communications as text": (lambda: fit(rounds=None, communications="5"), "communications must be a number"),
    "a seed that is not whole": (lambda: fit(seed=1.5), "seed must be a whole number, 0 or more, not 1.5"),
    "a negative seed": (lambda: fit(seed=-1), "seed must be a whole number, 0 or more, not -1"),
    "a tolerance that is not a number": (lambda: fit(tolerance=np.nan), "tolerance must be a number"),
    "a tolerance as text": (lambda: fit(tolerance="small"), "tolerance must be a number"),
    "a negative tolerance": (lambda: fit(tolerance=-1.0), "tolerance must be a number of nats, 0 or more, or None"),
    "a solver's negative tolerance": (lambda: pt.Newton(tolerance=-1.0), "tolerance must be a number of nats"),
    "a solver's tolerance of NaN": (lambda: pt.solvers.LBFGS(tolerance=np.nan), "tolerance must be a number of nats"),
    "metrics every −1 steps": (lambda: pt.Monitor(every=-1), "must be a whole number, 0 or more, not -1"),
    "metrics every text": (lambda: pt.Monitor(every="3"), "must be a whole number, 0 or more, not the text '3'"),
    "metrics every step and a half": (lambda: pt.Monitor(every=1.5), "must be a whole number, 0 or more, not 1.5"),
    "an experiment that never evaluates": (lambda: Run("sequential", 9, evaluate_every=0), "evaluate_every"),
    "an experiment that evaluates every −1": (lambda: Run("sequential", 9, evaluate_every=-1), "evaluate_every"),
    "a count beyond precision": (lambda: counted(1e15), "count is too large for float64"),
    "an input whose square overflows": (lambda: outlying(1e300), "column 1 of x .* rescale"),
    "a vector for a log density": (lambda: fit(model=pt.LogDensity(lambda t, row: t * row.x)), "one number a row"),
    "text for a log density": (lambda: fit(model=pt.LogDensity(lambda t, row: "high")), "one number a row"),
    "a whole log density": (lambda: fit(model=pt.LogDensity(lambda t, row: 1)), "one number a row"),
    "a log density that fails": (lambda: fit(model=pt.LogDensity(lambda t: 0.0)), "takes 1 positional"),
    "other columns to predict": (lambda: fit().posterior.predict(X[:, :1]), "1 column, where the fit had 2"),
    "a row to predict": (lambda: fit().posterior.predict(X[0]), "a matrix with a row for each prediction"),
    "text to predict": (lambda: fit().posterior.predict([["a", "b"]]), "text"),
    "NaN to predict": (lambda: fit().posterior.predict([[np.nan, 1.0]]), "row 0 .* not finite"),
    "metrics of text labels": (lambda: pt.metrics.error(Y, np.where(Y > 0, "yes", "no")), "labels hold text"),
    "metrics of too few labels": (lambda: pt.metrics.error(Y, Y[:3]), "12 rows of probabilities and 3 labels"),
    "metrics of NaN": (lambda: pt.metrics.brier(np.full(12, np.nan), Y), "probabilities must be from 0 to 1"),
    "metrics of no probability": (lambda: pt.metrics.brier(2 + Y, Y), "probabilities must be from 0 to 1"),
    "errors of other lengths": (lambda: pt.metrics.root_mean_squared_error(Y, Y[:3]), "12 predictions and 3 responses"),
    "errors of text": (lambda: pt.metrics.root_mean_squared_error(Y, list("yesnoyesnoye")), "text"),
    "errors of NaN": (lambda: pt.metrics.root_mean_squared_error(Y, np.full(12, np.nan)), "not finite"),
    "a method as text": (lambda: fit(method="sequential"), "methods.named"),
    "a method that is not called": (lambda: fit(method=pt.methods.sequential), "the method must be a Method"),
    "a class of models": (lambda: fit(model=pt.LogisticRegression), r"LogisticRegression\(\)"),
    "a class of priors": (lambda: fit(prior=pt.FullGaussian), "the prior must be a member of a family"),
    "a table for clients": (lambda: fit(partition=TABLE), "partita.federate"),
    "a negative number of draws": (lambda: fit().posterior.sample(-1), "number of draws"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_by_name(name):
    act, message = MISTAKES[name]
    with pytest.raises(pt.InputError, match=f"(?i){message}"):
        act()


def test_rows_are_dropped_on_request():
    assert pt.split(TABLE, [np.arange(5), np.arange(5, 10)], drop=True).rows == 10


@pytest.mark.parametrize(
    ("solver", "family"),
    [
        (pt.Newton(), pt.FullGaussian),
        (pt.Newton(), pt.MeanFieldGaussian),
        (pt.solvers.FixedPoint(), pt.MeanFieldGaussian),
        (pt.solvers.LBFGS(), pt.FullGaussian),
    ],
)
def test_a_solver_that_cannot_move_has_not_converged(solver, family):
    """Free energies of −1e13 hide every step in their rounding: the prior was returned as converged."""
    result = pt.run(
        pt.methods.sequential(solver),
        pt.PoissonRegression(),
        family.standard_normal(2),
        pt.split(pt.Table(X, np.where(np.arange(12) == 3, 1e12, 2.0)), THIRDS),
        rounds=20,
    )
    assert result.status is not pt.Status.CONVERGED, result


def test_numbers_too_large_for_single_precision_are_named():
    with jax.enable_x64(False), pytest.raises(pt.InputError, match=r"client 1: column 1 of x .* float32: rescale"):
        outlying(1e30)


def test_no_tolerance_ends_a_run_never():
    assert fit(rounds=30, tolerance=None).status is pt.Status.BUDGET_SPENT
    assert fit(rounds=30, tolerance=0.0).state.answers <= 90


def test_labels_of_another_site_can_be_compared():
    """What is valid stays so: lists, whole numbers, and columns of probabilities."""
    assert pt.metrics.error([[0.2, 0.8], [0.9, 0.1]], [1, 0]) == 0.0
