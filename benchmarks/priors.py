"""Student-t, horseshoe and R2D2 priors on logistic regressions: federated beside pooled, and beside long NUTS runs.

NUTS (NumPyro) samples the local scales that partita sums out. Data: breast cancer, and the first 2,000 rows of Adult;
columns are standardised, and those that are constant are left out.
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nuts
import partita as pt

LAWS = {"student_t": "student_t(3, 0, 2.5)", "horseshoe": "horseshoe(0.1, 2)", "r2d2": "r2d2(0.5, 0.5)"}
SITES, ROWS, ACCEPT = 3, 2000, 0.95


def rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised columns after an intercept, and labels."""
    data = pt.datasets.breast_cancer() if name == "breast_cancer" else pt.datasets.adult()
    parts = [data.train] if name == "adult" else [data.train, data.test]
    x, y = (np.concatenate([np.asarray(getattr(part, what), float) for part in parts])[:ROWS] for what in ("x", "y"))
    x = x[:, np.ptp(x, axis=0) > 0]
    return np.column_stack([np.ones(len(x)), (x - x.mean(0)) / x.std(0)]), y


def variational(x: np.ndarray, y: np.ndarray, law: str, sites: int) -> Any:
    """The run on rows dealt to so many sites."""
    names = ["Intercept", *(f"x{k}" for k in range(1, x.shape[1]))]
    prior = pt.prior(f"Intercept: normal(0, 10); {LAWS[law]}", names)
    scales = prior.base.mean.size - x.shape[1]
    x = np.column_stack([x, np.zeros((len(x), scales))])
    parts = np.array_split(np.random.default_rng(0).permutation(len(x)), sites)
    clients = pt.federate([pt.Table(x[part], y[part]) for part in parts])
    quiet = pt.Monitor(progress=False)
    return pt.run(
        pt.methods.sequential(), pt.LogisticRegression(), prior, clients, rounds=300, tolerance=1e-14, monitor=quiet
    )


def joint(x: Any, y: Any, law: str) -> None:
    """The same model for NumPyro, with local scales."""
    import numpyro
    import numpyro.distributions as dist

    count = x.shape[1] - 1

    def each(name: str, law: Any) -> Any:
        return numpyro.sample(name, law.expand([count]).to_event(1))

    def coefficients() -> Any:
        if law == "student_t":
            return each("b", dist.StudentT(3, 0, 2.5))
        noise = each("noise", dist.Normal(0, 1))
        if law == "horseshoe":
            spread = numpyro.sample("scale", dist.HalfCauchy(0.1)) * each("local", dist.HalfCauchy(1.0))
            return noise * 2 * spread / jnp.sqrt(4 + spread**2)
        return noise * jnp.sqrt(each("share", dist.Gamma(0.5, 1.0)) / numpyro.sample("rate", dist.Gamma(0.5, 1.0)))

    first = numpyro.sample("first", dist.Normal(0, 10))
    beta = numpyro.deterministic("beta", jnp.concatenate([first[None], coefficients()]))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def compared(name: str, law: str, folder: Path, warmup: int, count: int) -> dict[str, Any]:
    """One row of the table."""
    x, y = rows(name)
    federated, pooled = (variational(x, y, law, sites).posterior.q for sites in (SITES, 1))
    own = np.asarray(pooled.sd)
    far = {
        "federated mean": float(np.abs((federated.mean - pooled.mean) / own).max()),
        "federated sd": float(np.abs(federated.sd / own - 1).max()),
    }
    model = functools.partial(joint, law=law)
    found = nuts.draws(
        f"{name}-{law}", model, ("beta",), folder, warmup, count, ACCEPT, x=jnp.asarray(x), y=jnp.asarray(y)
    )
    beta = found["beta"].reshape(-1, x.shape[1])
    moved = np.abs(np.asarray(federated.mean)[: x.shape[1]] - beta.mean(0)) / beta.std(0)
    spread = np.asarray(federated.sd)[: x.shape[1]] / beta.std(0)
    told = {
        "mean off, largest": float(moved.max()),
        "means within 0.1": float((moved < 0.1).mean()),
        "sd ratio, least": float(spread.min()),
        "sd ratio, median": float(np.median(spread)),
        "sds within 10%": float((np.abs(spread - 1) < 0.1).mean()),
    }
    return {"data": name, "prior": law} | far | told | nuts.mixed(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=["breast_cancer", "adult"])
    parser.add_argument("--prior", nargs="*", default=list(LAWS))
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--keep", type=Path, default=Path("build/nuts"), help="a folder for chains that are done")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in given.data:
        for law in given.prior:
            print(json.dumps(compared(name, law, given.keep, given.warmup, given.draws)), flush=True)


if __name__ == "__main__":
    main()
