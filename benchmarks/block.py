"""Block-diagonal covariance beside mean field at 2,000 columns, and both beside the exact curvature.

Three sites of 5,000 rows, logistic regression. Neighbouring columns are correlated, and all columns a little by a
common factor, so that blocks of 200 leave something out. Sds are compared with those of the full precision, prior plus
expected curvatures of all rows at the block posterior, inverted once by NumPy. With `--formula` a table of such columns
goes through `pt.fit` instead, with a term for each of them.
"""

import argparse
import json
import resource
import time
from typing import Any

import jax
import numpy as np

import partita as pt
from partita.expectations.curvature import shard_curvature
from partita.families import BlockGaussian

SITES = 3
PRIOR_SD = 2.5


def correlated(generator: np.random.Generator, rows: int, columns: int, neighbours: float, common: float) -> np.ndarray:
    """Rows of all sites whose columns have these correlations."""
    x = generator.normal(size=(SITES * rows, columns))
    for j in range(1, columns):
        x[:, j] = neighbours * x[:, j - 1] + np.sqrt(1 - neighbours**2) * x[:, j]
    return np.sqrt(1 - common) * x + np.sqrt(common) * generator.normal(size=(len(x), 1))


def clients(columns: int, rows: int, neighbours: float, common: float) -> pt.Partition:
    """Standardised columns with these correlations, an intercept first, and a binary response."""
    generator = np.random.default_rng(0)
    x = correlated(generator, rows, columns, neighbours, common)
    x = (x - x.mean(0)) / x.std(0)
    x[:, 0] = 1
    beta = generator.normal(0, 1 / np.sqrt(columns), columns)
    y = (generator.random(len(x)) < 1 / (1 + np.exp(-x @ beta))).astype(float)
    return pt.split(pt.Table(x, y), np.array_split(np.arange(len(x)), SITES))


def fitted(prior: pt.Family, parts: pt.Partition, rounds: int) -> tuple[pt.Result, dict[str, Any]]:
    """The result of one family, and what it took."""
    started, worked = time.perf_counter(), time.process_time()
    monitor = pt.Monitor(every=0, progress=False)
    result = pt.run(pt.methods.sequential(), pt.LogisticRegression(), prior, parts, rounds=rounds, monitor=monitor)
    return result, taken(result, started, worked) | {"numbers in a message": prior.size()}


def taken(result: pt.Result, started: float, worked: float) -> dict[str, Any]:
    """What a run took since it was begun."""
    return {
        "status": result.status.value,
        "rounds": round(float(result.state.updates) / SITES, 1),
        "seconds": round(time.perf_counter() - started, 1),
        "processor seconds": round(time.process_time() - worked, 1),
        "peak memory so far, GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def by_formula(columns: int, rows: int, neighbours: float, common: float, rounds: int) -> dict[str, Any]:
    """A table of so many columns with the intercept, by `pt.fit` with its defaults."""
    import pandas

    generator = np.random.default_rng(0)
    x = correlated(generator, rows, columns - 1, neighbours, common)
    beta = generator.normal(0, 1 / np.sqrt(columns), columns - 1)
    names = [f"x{j}" for j in range(columns - 1)]
    frame = pandas.DataFrame(x, columns=names)
    frame["y"] = (generator.random(len(x)) < 1 / (1 + np.exp(-x @ beta))).astype(int)
    frame["site"] = np.repeat(["a", "b", "c"], rows)
    started, worked = time.perf_counter(), time.process_time()
    fit = pt.fit("y ~ " + " + ".join(names), frame, family="bernoulli", sites="site", rounds=rounds)
    told = taken(fit.result, started, worked) | {"independent blocks": fit.q.independent_groups}
    started = time.perf_counter()
    fit.table()
    return {"pt.fit": told | {"seconds of the table": round(time.perf_counter() - started, 1), "notes": fit.notes}}


def exact_sds(result: pt.Result, parts: pt.Partition) -> np.ndarray:
    """Those of full covariance at the expected curvatures under a posterior."""
    q, model = result.posterior.q, result.posterior.model
    curvature = sum(np.asarray(shard_curvature(model, q, shard)) for shard in parts.shards)
    return np.sqrt(np.diag(np.linalg.inv(curvature + np.eye(len(curvature)) / PRIOR_SD**2)))


def compared(columns: int, rows: int, size: int, neighbours: float, common: float, rounds: int) -> dict[str, Any]:
    """Both families on the same rows."""
    parts = clients(columns, rows, neighbours, common)
    priors: dict[str, pt.Family] = {
        "block": BlockGaussian.standard_normal([size] * (columns // size), PRIOR_SD),
        "mean-field": pt.MeanFieldGaussian.standard_normal(columns, PRIOR_SD),
    }
    told: dict[str, Any] = {}
    exact = None
    for name, prior in priors.items():
        result, told[name] = fitted(prior, parts, rounds)
        exact = exact_sds(result, parts) if exact is None else exact
        ratio = np.asarray(result.posterior.sd) / exact
        told[name]["sd / exact sd"] = {f"{p}%": round(float(np.percentile(ratio, p)), 4) for p in (0, 5, 50, 95, 100)}
    return told


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--columns", type=int, default=2000)
    arguments.add_argument("--rows", type=int, default=5000, help="of each site")
    arguments.add_argument("--size", type=int, default=200, help="of a block")
    arguments.add_argument("--neighbours", type=float, default=0.5, help="the correlation of neighbouring columns")
    arguments.add_argument("--common", type=float, default=0.05, help="the correlation that all columns share")
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--formula", action="store_true", help="through pt.fit, with its own blocks")
    arguments.add_argument("--json", action="store_true")
    given = vars(arguments.parse_args())
    as_json, formula = given.pop("json"), given.pop("formula")
    if formula:
        given.pop("size")
    with jax.enable_x64(True):
        found = by_formula(**given) if formula else compared(**given)
    if as_json:
        print(json.dumps(found))
    else:
        for name, about in found.items():
            print(name, *(f"  {key}: {value}" for key, value in about.items()), sep="\n")
