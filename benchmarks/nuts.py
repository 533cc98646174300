"""Draws by NUTS (NumPyro) to compare with, a chain at a time: each is kept in a file."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size, gelman_rubin
from numpyro.infer import MCMC, NUTS

CHAINS = 2


def draws(
    name: str,
    model: Callable[..., Any],
    sites: tuple[str, ...],
    folder: Path,
    warmup: int,
    count: int,
    accept: float = 0.9,
    **data: Any,
) -> dict[str, np.ndarray]:
    """Draws of these sites, the chain first; `data` are the model's arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    chains = []
    for chain in range(CHAINS):
        path = folder / f"{name}-{warmup}-{count}-{accept:g}-{chain}.npz"
        if not path.exists():
            kernel = NUTS(model, target_accept_prob=accept)
            sampler = MCMC(kernel, num_warmup=warmup, num_samples=count, progress_bar=False)
            began = time.process_time()
            sampler.run(jax.random.key(chain), **data)
            found = sampler.get_samples()
            kept = {site: np.asarray(found[site]) for site in sites}
            np.savez(path, **kept, divergences=int(sampler.get_extra_fields()["diverging"].sum()))
            print(f"{path.name}: {time.process_time() - began:.0f} s of processor time", flush=True)
        with np.load(path) as stored:
            chains.append({site: stored[site] for site in (*sites, "divergences")})
    return {site: np.stack([chain[site] for chain in chains]) for site in chains[0]}


def mixed(found: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What tells whether the chains have mixed: the least effective sample size, the largest R-hat, divergences."""
    drawn = [value for site, value in found.items() if site != "divergences"]
    return {
        "least ess": float(min(effective_sample_size(value).min() for value in drawn)),
        "largest r-hat": float(max(gelman_rubin(value).max() for value in drawn)),
        "divergences": int(found["divergences"].sum()),
    }
