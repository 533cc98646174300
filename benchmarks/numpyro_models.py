"""Six NumPyro models, unchanged: three clients beside pooled rows, and beside long NUTS runs.

Sites are compared without constraints, where q is Gaussian; of the network, whose hidden units may change places, the
function at its rows.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer.util import unconstrain_fn

import nuts
import partita as pt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.numpyro_models import MODELS, parts, start

DRAWS = 20_000
"""Of q, for the function of a network: its mean is then known to 0.007 standard deviations."""


def variational(name: str, rows: list[Any]) -> tuple[Any, Any]:
    """The model, and its run on these clients' rows."""
    function, shared, everything = MODELS[name]
    model = pt.from_numpyro(function, everything, shared=shared)
    method = pt.methods.sequential(pt.solvers.ModeFixedPoint(tolerance=1e-16), start=start(name, len(model.names)))
    quiet = pt.Monitor(progress=False)
    return model, pt.run(method, model, model.prior(), pt.federate(rows), rounds=300, tolerance=1e-14, monitor=quiet)


def network_at(draws: dict[str, Any]) -> np.ndarray:
    x = MODELS["network"][2]["x"]
    return np.asarray(jnp.einsum("...nh,...h->...n", jnp.tanh(x @ draws["w"]), draws["v"]))


def compared(name: str, folder: Path, warmup: int, count: int) -> dict[str, Any]:
    """One row of the table."""
    function, _, rows = MODELS[name]
    model, federated = variational(name, parts(rows))
    pooled = variational(name, [rows])[1].posterior
    q, sd = federated.posterior, np.asarray(pooled.sd)
    far = {
        "status": federated.status.value,
        "federated mean": float(np.abs((q.mean - pooled.mean) / sd).max()),
        "federated sd": float(np.abs(q.sd / sd - 1).max()),
    }
    sites = tuple(site.name for site in model.sites.shared)
    found = nuts.draws(f"numpyro-{name}", function, sites, folder, warmup, count, 0.95, **rows)
    drawn = {site: found[site].reshape(-1, *found[site].shape[2:]) for site in sites}
    if name == "network":
        theirs, ours = network_at(drawn), network_at(q.draws(DRAWS))
        mean, spread = ours.mean(0), ours.std(0)
        mixing = {"function": network_at({site: found[site] for site in sites})}
    else:
        seeded = handlers.seed(function, 0)
        free = jax.jit(jax.vmap(lambda one: unconstrain_fn(seeded, (), rows, one)))(drawn)
        theirs = np.concatenate([np.asarray(free[site]).reshape(len(free[site]), -1) for site in sites], axis=1)
        mean, spread = np.asarray(q.mean), np.asarray(q.sd)
        mixing = {site: found[site] for site in sites}
    off, ratio = np.abs(mean - theirs.mean(0)) / theirs.std(0), spread / theirs.std(0)
    told = {
        "mean off, largest": float(off.max()),
        "means within 0.1": float((off < 0.1).mean()),
        "sd ratio, least": float(ratio.min()),
        "sd ratio, largest": float(ratio.max()),
        "sds within 10%": float((np.abs(ratio - 1) < 0.1).mean()),
    }
    return {"model": name} | far | told | nuts.mixed(mixing | {"divergences": found["divergences"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=list(MODELS))
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--keep", type=Path, default=Path("build/nuts"), help="a folder for chains that are done")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in given.model:
        print(json.dumps(compared(name, given.keep, given.warmup, given.draws)), flush=True)


if __name__ == "__main__":
    main()
