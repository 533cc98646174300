"""Models with effects of groups: federated beside pooled, and beside long NUTS runs; and what a visit costs.

`epil`: Poisson counts of 59 patients at four visits, with an intercept each, as four clinics and as 59 clients of one
patient. `heart`: four hospitals, each a client and a group, logistic. `made`: 2,000 generated groups of five rows at
ten clients, logistic, of a scale of 0.7. NUTS (NumPyro) samples every group's effect.
"""

import argparse
import csv
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import partita as pt
from partita.data import GroupedTable
from partita.models import GroupEffects

_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


class Case(NamedTuple):
    """Rows, what they are modelled by, and which groups are at which client."""

    table: GroupedTable
    likelihood: Any
    client: np.ndarray
    """Whose each row is."""


def _folder() -> Path:
    return Path(os.environ["PARTITA_DATA"])


def _standardised(columns: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(columns)), (columns - columns.mean(0)) / columns.std(0)])


def _case(x: np.ndarray, y: np.ndarray, group: np.ndarray, client: np.ndarray, likelihood: Any) -> Case:
    table = GroupedTable(x, y.astype(float), np.ones((len(y), 1)), group.astype(float), np.zeros(len(y)))
    return Case(table, likelihood, client)


def epil(clients: int) -> Case:
    """Seizures of patients."""
    with (_folder() / "counts" / "MASS_epil.csv").open() as file:
        rows = list(csv.DictReader(file))
    treated = np.array([row["trt"] == "progabide" for row in rows], float)
    base, age, last, y, who = (
        np.array([float(row[name]) for row in rows]) for name in ("lbase", "lage", "V4", "y", "subject")
    )
    x = np.column_stack([np.ones(len(y)), base, treated, base * treated, age, last])
    return _case(x, y, who, who.astype(int) % clients, pt.PoissonRegression())


def heart(clients: int) -> Case:
    """Disease by age, sex, chest pain and heart rate, where all are known."""
    found = []
    for place, name in enumerate(_HOSPITALS):
        text = (_folder() / "heart" / f"processed.{name}.data").read_text()
        for line in text.split():
            cells = line.split(",")
            chosen = [cells[k] for k in (0, 1, 2, 7, 13)]
            if "?" not in chosen:
                found.append([place, *map(float, chosen)])
    rows = np.array(found)
    return _case(
        _standardised(rows[:, 1:5]), rows[:, 5] > 0, rows[:, 0], rows[:, 0].astype(int), pt.LogisticRegression()
    )


def made(clients: int, groups: int = 2000, each: int = 5, seed: int = 0) -> Case:
    """Generated groups."""
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), each)
    x = np.column_stack([np.ones(len(group)), generator.normal(size=(len(group), 2))])
    f = x @ [-0.5, 0.5, -0.3] + 0.7 * generator.normal(size=groups)[group]
    y = generator.binomial(1, 1 / (1 + np.exp(-f)))
    return _case(x, y, group, group % clients, pt.LogisticRegression())


CASES = {"epil 4": (epil, 4), "epil 59": (epil, 59), "heart": (heart, 4), "made": (made, 10)}


def prior_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of θ."""
    size = case.table.x.shape[1]
    return np.append(np.zeros(size), -0.5), np.append(np.full(size, 2.0), 1.0)


def variational(case: Case, family: Any, pooled: bool = False) -> Any:
    """The run."""
    mean, sd = prior_of(case)
    parts = [0 * case.client == 0] if pooled else [case.client == k for k in np.unique(case.client)]
    clients = pt.federate([GroupedTable(*(leaf[part] for leaf in case.table)) for part in parts], buckets=1)
    prior = family(mean, sd)
    solver = pt.solvers.FixedPoint(tolerance=1e-12)
    quiet = pt.Monitor(progress=False)
    method = pt.methods.sequential(solver)
    return pt.run(method, GroupEffects(case.likelihood), prior, clients, tolerance=1e-10, rounds=50, monitor=quiet)


def full(mean: np.ndarray, sd: np.ndarray) -> pt.FullGaussian:
    """A full covariance."""
    return pt.FullGaussian.from_mean_covariance(mean, np.diag(sd**2))


def effects(case: Case, result: Any, draws: int = 4000) -> np.ndarray:
    """Draws of all groups' effects, in the order of their numbers."""
    model, q = GroupEffects(case.likelihood), result.posterior.q
    table = jax.tree.map(jnp.asarray, case.table)
    found = jax.jit(model.expectation.conditionals)(model, q, table, jnp.ones(len(table.y)))
    first, second = jax.random.split(jax.random.key(1))
    drawn = model.effects_drawn(q, found, q.sample(first, (draws,)), second)
    return np.asarray(drawn[:, : len(np.unique(case.table.group)), 0])


def sampled(case: Case, warmup: int, draws: int) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Draws of θ and of effects, and what tells whether the chains have mixed."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size, gelman_rubin
    from numpyro.infer import MCMC, NUTS

    mean, sd = prior_of(case)
    place = np.unique(case.table.group, return_inverse=True)[1]
    groups, (x, y) = place.max() + 1, (jnp.asarray(case.table.x), jnp.asarray(case.table.y))

    def model() -> None:
        theta = numpyro.sample("theta", dist.Normal(jnp.asarray(mean), jnp.asarray(sd)).to_event(1))
        noise = numpyro.sample("noise", dist.Normal(0, 1).expand([int(groups)]).to_event(1))
        effect = numpyro.deterministic("effect", jax.nn.softplus(theta[-1]) * noise)
        f = x @ theta[:-1] + effect[place]
        law = (
            dist.Poisson(jnp.exp(f)) if isinstance(case.likelihood, pt.PoissonRegression) else dist.Bernoulli(logits=f)
        )
        numpyro.sample("y", law, obs=y)

    kernel = NUTS(model, target_accept_prob=0.9)
    chains = MCMC(
        kernel, num_warmup=warmup, num_samples=draws, num_chains=2, chain_method="sequential", progress_bar=False
    )
    chains.run(jax.random.key(0))
    found = chains.get_samples(group_by_chain=True)
    theta, drawn = np.asarray(found["theta"]), np.asarray(found["effect"])
    mixed = {"least ess": float(effective_sample_size(theta).min()), "largest r-hat": float(gelman_rubin(theta).max())}
    return theta.reshape(-1, theta.shape[-1]), drawn.reshape(-1, drawn.shape[-1]), mixed


def _log_scale(theta: np.ndarray) -> np.ndarray:
    return np.log(np.log1p(np.exp(theta[:, -1])))


def compared(name: str, warmup: int, draws: int) -> dict[str, Any]:
    """One row of the table."""
    made_by, clients = CASES[name]
    case = made_by(clients)
    began = time.process_time()
    federated = variational(case, full)
    took = time.process_time() - began
    pooled = variational(case, full, pooled=True)
    apart = variational(case, pt.MeanFieldGaussian.from_mean_sd)
    q, own = federated.posterior.q, np.asarray(pooled.posterior.q.sd)
    theta, drawn, mixed = sampled(case, warmup, draws)
    mean, sd = theta.mean(0), theta.std(0)
    ours = np.asarray(q.sample(jax.random.key(0), (40_000,)))
    told, theirs = _log_scale(ours), _log_scale(theta)
    effect = effects(case, federated)
    fixed = slice(0, -1)
    return {
        "data": name,
        "seconds": round(took, 1),
        "rounds": len(federated.history),
        "federated mean": float(np.abs((np.asarray(q.mean) - pooled.posterior.q.mean) / own).max()),
        "federated sd": float(np.abs(np.asarray(q.sd) / own - 1).max()),
        "federated F": float(federated.free_energy - pooled.free_energy),
        "fixed, mean off": float(np.abs((np.asarray(q.mean) - mean) / sd)[fixed].max()),
        "fixed, sd ratios": [float(ratio) for ratio in np.sort((np.asarray(q.sd) / sd)[fixed])[[0, -1]]],
        "mean field, sd ratios": [float(r) for r in np.sort((np.asarray(apart.posterior.q.sd) / sd)[fixed])[[0, -1]]],
        "log scale, mean off": float((told.mean() - theirs.mean()) / theirs.std()),
        "log scale, sd ratio": float(told.std() / theirs.std()),
        "scale": [float(np.exp(np.quantile(told, at))) for at in (0.05, 0.5, 0.95)],
        "scale by NUTS": [float(np.exp(np.quantile(theirs, at))) for at in (0.05, 0.5, 0.95)],
        "effects, mean off": float(np.abs((effect.mean(0) - drawn.mean(0)) / drawn.std(0)).max()),
        "effects, sd ratios": [float(r) for r in np.quantile(effect.std(0) / drawn.std(0), [0, 0.5, 1])],
    } | mixed


def cost(sizes: list[int]) -> None:
    """Seconds of cores for the bound and its gradient at the prior, by the number of groups, all at one client."""
    for groups in sizes:
        case = made(1, groups)
        model, q = GroupEffects(case.likelihood), full(*prior_of(case))
        table, weights = jax.tree.map(jnp.asarray, case.table), jnp.ones(len(case.table.y))

        @jax.jit
        def both(q: Any, table: Any, weights: Any, model: Any = model) -> Any:
            return q.value_and_natural_gradient(lambda at: model.ell(at, table, weights, jax.random.key(0)))

        program = both.lower(q, table, weights).compile()
        began = time.process_time()
        jax.block_until_ready(program(q, table, weights))
        print(json.dumps({"groups": groups, "seconds": round(time.process_time() - began, 2)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(CASES))
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--cost", nargs="*", type=int, default=[])
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if given.cost:
        cost(given.cost)
        return
    for name in given.data:
        print(json.dumps(compared(name, given.warmup, given.draws)), flush=True)


if __name__ == "__main__":
    main()
