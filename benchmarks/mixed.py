"""Models with effects of groups: federated beside pooled, and beside long NUTS runs; and what a visit costs.

`epil`: Poisson counts of 59 patients at four visits, with an intercept each, as four clinics and as 59 clients of one
patient. `heart`: four hospitals, each a client and a group, logistic. `made`: 2,000 generated groups of five rows at
ten clients, logistic, of a scale of 0.7. `funnel 20` and `funnel 200`: so many groups of three and of two rows at four
clients, of the same scale. `nested`: 300 generated wards of eight rows in 30 hospitals at ten clients, logistic, of
scales 0.5 and 0.7. NUTS (NumPyro) samples every group's effect. `--coverage 200`: how often intervals have the truth,
of so many generated data sets of 40 groups of six rows. With `--output` each row is kept when it is told, and a run
that was stopped goes on after the last one.
"""

import argparse
import csv
import functools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import partita as pt
from partita.data import GroupedTable
from partita.expectations import LocalEffects
from partita.models import GroupEffects

_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
MASSES = (0.9, 0.95)


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
    """Of one column of groups, or of several, the outermost first."""
    group = group.reshape(len(y), -1).astype(float)
    return Case(GroupedTable(x, y.astype(float), np.ones_like(group), group, np.zeros(len(y))), likelihood, client)


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


def funnel(clients: int, groups: int, each: int) -> Case:
    """Groups that tell little of their effects."""
    return made(clients, groups, each, seed=1)


def nested(clients: int, hospitals: int = 30, wards: int = 10, each: int = 8, seed: int = 0) -> Case:
    """Generated groups within groups."""
    generator = np.random.default_rng(seed)
    ward = np.repeat(np.arange(hospitals * wards), each)
    hospital = ward // wards
    x = np.column_stack([np.ones(len(ward)), generator.normal(size=(len(ward), 2))])
    f = x @ [-0.5, 0.5, -0.3] + 0.5 * generator.normal(size=hospitals)[hospital]
    f = f + 0.7 * generator.normal(size=hospitals * wards)[ward]
    y = generator.binomial(1, 1 / (1 + np.exp(-f)))
    return _case(x, y, np.stack([hospital, ward % wards], axis=1), hospital % clients, pt.LogisticRegression())


CASES: dict[str, tuple[Callable[[int], Case], int]] = {
    "epil 4": (epil, 4),
    "epil 59": (epil, 59),
    "heart": (heart, 4),
    "made": (made, 10),
    "funnel 20": (functools.partial(funnel, groups=20, each=3), 4),
    "funnel 200": (functools.partial(funnel, groups=200, each=2), 4),
    "nested": (nested, 10),
}


def prior_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of θ."""
    size, levels = case.table.x.shape[1], case.table.z.shape[1]
    return np.append(np.zeros(size), np.full(levels, -0.5)), np.append(np.full(size, 2.0), np.ones(levels))


def model_of(case: Case) -> GroupEffects:
    """Intercepts of the groups of each level."""
    return GroupEffects(case.likelihood, (1,) * case.table.z.shape[1])


def variational(case: Case, family: Any, pooled: bool = False) -> Any:
    """The run."""
    mean, sd = prior_of(case)
    parts = [0 * case.client == 0] if pooled else [case.client == k for k in np.unique(case.client)]
    clients = pt.federate([GroupedTable(*(leaf[part] for leaf in case.table)) for part in parts], buckets=1)
    prior = family(mean, sd)
    solver = pt.solvers.FixedPoint(tolerance=1e-12)
    quiet = pt.Monitor(progress=False)
    method = pt.methods.sequential(solver)
    return pt.run(method, model_of(case), prior, clients, tolerance=1e-10, rounds=50, monitor=quiet)


def full(mean: np.ndarray, sd: np.ndarray) -> pt.FullGaussian:
    """A full covariance."""
    return pt.FullGaussian.from_mean_covariance(mean, np.diag(sd**2))


def effects(case: Case, result: Any, draws: int = 4000) -> np.ndarray:
    """Draws of the effects of all innermost groups and of those around them together, in the order of their numbers."""
    model, q = model_of(case), result.posterior.q
    table = jax.tree.map(jnp.asarray, case.table)
    found = jax.jit(model.expectation.conditionals)(model, q, table, jnp.ones(len(table.y)))[-1]
    count = len(np.unique(case.table.group, axis=0))
    first, second = jax.random.split(jax.random.key(1))
    drawn = model.effects_drawn(q, jax.tree.map(lambda leaf: leaf[:count], found), q.sample(first, (draws,)), second)
    return np.asarray(drawn.sum(axis=-1))


def sampled(case: Case, warmup: int, draws: int) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Draws of θ and of effects, and what tells whether the chains have mixed."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size, gelman_rubin
    from numpyro.infer import MCMC, NUTS

    mean, sd = prior_of(case)
    levels = range(case.table.z.shape[1])
    places = [np.unique(case.table.group[:, : k + 1], axis=0, return_inverse=True)[1].ravel() for k in levels]
    rows = np.array([np.flatnonzero(places[-1] == k)[0] for k in range(places[-1].max() + 1)])
    x, y, split = jnp.asarray(case.table.x), jnp.asarray(case.table.y), case.table.x.shape[1]

    def model() -> None:
        theta = numpyro.sample("theta", dist.Normal(jnp.asarray(mean), jnp.asarray(sd)).to_event(1))
        total = jnp.zeros(len(y))
        for level, place in zip(levels, places, strict=True):
            noise = numpyro.sample(f"noise {level}", dist.Normal(0, 1).expand([int(place.max()) + 1]).to_event(1))
            total = total + jax.nn.softplus(theta[split + level]) * noise[place]
        numpyro.deterministic("effect", total[rows])
        f = x @ theta[:split] + total
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


def _log_scales(theta: np.ndarray, levels: int) -> np.ndarray:
    return np.log(np.log1p(np.exp(theta[:, theta.shape[1] - levels :])))


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
    levels = case.table.z.shape[1]
    told, theirs = _log_scales(ours, levels), _log_scales(theta, levels)
    effect = effects(case, federated)
    fixed, ends = slice(0, -levels), (0.05, 0.5, 0.95)
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
        "log scales, mean off": ((told.mean(0) - theirs.mean(0)) / theirs.std(0)).tolist(),
        "log scales, sd ratio": (told.std(0) / theirs.std(0)).tolist(),
        "scales": np.exp(np.quantile(told, ends, axis=0)).T.tolist(),
        "scales by NUTS": np.exp(np.quantile(theirs, ends, axis=0)).T.tolist(),
        "effects, mean off": float(np.abs((effect.mean(0) - drawn.mean(0)) / drawn.std(0)).max()),
        "effects, sd ratios": [float(r) for r in np.quantile(effect.std(0) / drawn.std(0), [0, 0.5, 1])],
    } | mixed


def covered(seed: int) -> dict[str, Any]:
    """Of one generated data set whether 90% and 95% intervals of each element of θ have the truth."""
    case = made(4, 40, 6, seed=1000 + seed)
    truth = np.array([-0.5, 0.5, -0.3, np.log(np.expm1(0.7))])
    result = variational(case, full)
    q = result.posterior.q
    away = np.abs((np.asarray(q.mean) - truth) / np.asarray(q.sd))
    return {
        "data": f"coverage {seed}",
        "arrived": bool(result.status.arrived),
        "inside": {str(mass): (away < stats.norm.ppf((1 + mass) / 2)).tolist() for mass in MASSES},
    }


def coverage(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The shares of intervals that have the truth, and the binomial error of a nominal share."""
    rows = list(rows)
    shares = {str(mass): np.mean([row["inside"][str(mass)] for row in rows], axis=0).tolist() for mass in MASSES}
    errors = {str(mass): float(np.sqrt(mass * (1 - mass) / len(rows))) for mass in MASSES}
    arrived = sum(row["arrived"] for row in rows)
    return {"data": "coverage", "data sets": len(rows), "arrived": arrived, "shares": shares, "errors": errors}


def cost(sizes: list[int], levels: int, steps: int) -> None:
    """Seconds of cores for the bound and its gradient at the prior, by the number of groups, all at one client."""
    for groups in sizes:
        case = made(1, groups) if levels == 1 else nested(1, groups // 10, each=5)
        expectation = LocalEffects(max_steps=steps)
        model = GroupEffects(case.likelihood, (1,) * levels, expectation=expectation)
        q = full(*prior_of(case))
        table, weights = jax.tree.map(jnp.asarray, case.table), jnp.ones(len(case.table.y))

        @jax.jit
        def both(q: Any, table: Any, weights: Any, model: Any = model) -> Any:
            return q.value_and_natural_gradient(lambda at: model.ell(at, table, weights, jax.random.key(0)))

        program = both.lower(q, table, weights).compile()
        began = time.process_time()
        jax.block_until_ready(program(q, table, weights))
        took = round(time.process_time() - began, 2)
        print(json.dumps({"levels": levels, "innermost groups": groups, "seconds": took}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(CASES))
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--cost", nargs="*", type=int, default=[])
    parser.add_argument("--levels", type=int, default=1, choices=[1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--coverage", type=int, default=0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if given.cost:
        cost(given.cost, given.levels, given.steps)
        return
    if given.coverage:
        names = [f"coverage {seed}" for seed in range(given.coverage)]
        told = kept(given.output, names, lambda name: covered(int(name.split()[1])))
        print(json.dumps(coverage(told)), flush=True)
        return
    for row in kept(given.output, given.data, lambda name: compared(name, given.warmup, given.draws)):
        print(json.dumps(row), flush=True)


def kept(path: Path | None, names: list[str], make: Callable[[str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of these names: those that a file has, and others made and appended to it."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    done = {row["data"]: row for row in map(json.loads, lines)}
    for name in names:
        row = done.get(name) or make(name)
        if path and name not in done:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row


if __name__ == "__main__":
    main()
