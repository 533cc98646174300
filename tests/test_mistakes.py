"""What users get wrong is refused in one sentence, with the culprit and the remedy."""

import numpy as np
import pytest
import scipy.sparse

import partita as pt

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
    "rounds as text": (lambda: fit(rounds="5"), "rounds must be a number, not '5'"),
    "communications as text": (lambda: fit(rounds=None, communications="5"), "communications must be a number"),
    "a seed that is not whole": (lambda: fit(seed=1.5), "seed must be a whole number, 0 or more, not 1.5"),
    "a negative seed": (lambda: fit(seed=-1), "seed must be a whole number, 0 or more, not -1"),
    "a tolerance that is not a number": (lambda: fit(tolerance=np.nan), "tolerance must be a number"),
    "a tolerance as text": (lambda: fit(tolerance="small"), "tolerance must be a number"),
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
