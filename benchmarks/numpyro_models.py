"""NumPyro models, unchanged: three clients beside pooled rows, and beside long NUTS runs.

Six share all of their variables; three have a plate that belongs to one client, whose variables are integrated out.
Shared sites are compared without constraints, where q is Gaussian; of the network, whose hidden units may change
places, the function at its rows.
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

from support.numpyro_models import LOCAL, MODELS, dealt, parts, start

DRAWS = 20_000
"""Of q, for the function of a network: its mean is then known to 0.007 standard deviations."""


SUFFIX = ", local"
"""Of models by `LOCAL`."""
FEWER = 512
"""Draws of θ where a member has two variables: of 144 nodes a member."""


def told(name: str) -> tuple[Any, dict[str, Any], Any]:
    """The model, whose its plates are, and rows."""
    if name.endswith(SUFFIX):
        return LOCAL[name.removesuffix(SUFFIX)]
    function, shared, rows = MODELS[name]
    return function, {"shared": shared}, rows


def variational(name: str, clients: int) -> tuple[Any, Any]:
    """The model, and its run on rows of so many clients."""
    function, whose, everything = told(name)
    model = pt.from_numpyro(function, everything, **whose)
    if model.sites.local is not None and model.sites.local.size > 1:
        fewer = pt.expectations.CommonDraws(FEWER)
        model = pt.from_numpyro(function, everything, **whose, expectation=fewer)
    local = name.endswith(SUFFIX)
    rows = dealt(name.removesuffix(SUFFIX), model, clients) if local else parts(everything, clients)
    method = pt.methods.sequential(pt.solvers.ModeFixedPoint(tolerance=1e-16), start=start(name, len(model.names)))
    quiet = pt.Monitor(progress=False)
    return model, pt.run(method, model, model.prior(), pt.federate(rows), rounds=300, tolerance=1e-14, monitor=quiet)


def network_at(draws: dict[str, Any]) -> np.ndarray:
    x = MODELS["network"][2]["x"]
    return np.asarray(jnp.einsum("...nh,...h->...n", jnp.tanh(x @ draws["w"]), draws["v"]))


def compared(name: str, folder: Path, warmup: int, count: int) -> dict[str, Any]:
    """One row of the table."""
    function, _, rows = told(name)
    model, federated = variational(name, 3)
    pooled = variational(name, 1)[1].posterior
    q, sd = federated.posterior, np.asarray(pooled.sd)
    far = {
        "status": federated.status.value,
        "federated mean": float(np.abs((q.mean - pooled.mean) / sd).max()),
        "federated sd": float(np.abs(q.sd / sd - 1).max()),
    }
    sites = tuple(site.name for site in model.sites.shared)
    found = nuts.draws(f"numpyro-{name.removesuffix(SUFFIX)}", function, sites, folder, warmup, count, 0.95, **rows)
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
    apart = {
        "mean off, largest": float(off.max()),
        "means within 0.1": float((off < 0.1).mean()),
        "sd ratio, least": float(ratio.min()),
        "sd ratio, largest": float(ratio.max()),
        "sds within 10%": float((np.abs(ratio - 1) < 0.1).mean()),
    }
    return {"model": name} | far | apart | nuts.mixed(mixing | {"divergences": found["divergences"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=[*MODELS, *(name + SUFFIX for name in LOCAL)])
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--keep", type=Path, default=Path("build/nuts"), help="a folder for chains that are done")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in given.model:
        print(json.dumps(compared(name, given.keep, given.warmup, given.draws)), flush=True)


if __name__ == "__main__":
    main()
