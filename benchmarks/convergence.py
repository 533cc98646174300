"""What runs say of their convergence beside how far they were: every method with its defaults on four problems.

A run that says *converged* goes on from its last state for as many rounds again, and for `--further` at least. What it
still moves is its distance from its own fixed point, in standard deviations. It may not be above 0.01.
"""

import argparse
import json
import sys
from math import inf, sqrt

import jax
import numpy as np

import partita as pt

jax.config.update("jax_enable_x64", True)
LIMIT = 0.01
ROUNDS = 200


def breast_cancer(clients):
    """Thirty columns, some of them nearly the same."""
    return pt.split(data := pt.datasets.breast_cancer().train, pt.partitioners.equal_random(len(data.y), clients))


def adult(rows, clients):
    """The first rows of Adult, divided among clients that differ in size and label (B)."""
    train = pt.datasets.adult().train
    data = pt.Table(train.x[:rows], train.y[:rows])
    return pt.split(data, pt.partitioners.beta_kappa(np.asarray(data.y), clients, 0.7, -3.0), drop=True)


def counts(clients):
    """Made-up counts."""
    generator = np.random.default_rng(0)
    x = pt.with_intercept(generator.normal(size=(600, 4)))
    data = pt.Table(x, generator.poisson(np.exp(np.asarray(x) @ [0.3, 0.5, -0.4, 0.2, 0.1])).astype(float))
    return pt.split(data, pt.partitioners.equal_random(600, clients))


def problems():
    """Name, model, prior and clients."""
    for name, model, parts, family in (
        ("breast cancer, full", pt.LogisticRegression(), breast_cancer(5), pt.FullGaussian),
        ("breast cancer, mean-field", pt.LogisticRegression(), breast_cancer(5), pt.MeanFieldGaussian),
        ("adult B, mean-field", pt.LogisticRegression(), adult(1_000, 10), pt.MeanFieldGaussian),
        ("counts, full", pt.PoissonRegression(), counts(60), pt.FullGaussian),
    ):
        yield name, model, family.standard_normal(parts.shards[0].data.x.shape[1]), parts


def judged(name, model, prior, parts, further):
    """How a method's run ended, what it said was left, and how far it moved when it went on."""
    method = pt.methods.named(name)
    quiet = pt.Monitor(every=0, progress=False)
    try:
        result = pt.run(method, model, prior, parts, rounds=ROUNDS, monitor=quiet)
    except pt.InputError:
        return {"method": name, "status": "not offered", "rounds": 0.0, "said": inf, "moved": None}
    rounds, said = result.history.rows[-1]["rounds"], result.history.rows[-1]["distance_left"]
    moved = None
    if result.status is pt.Status.CONVERGED:
        more = max(further, rounds)
        on = pt.run(method, model, prior, parts, rounds=more, tolerance=None, state=result.state, monitor=quiet)
        moved = sqrt(2 * max(float(result.posterior.q.distance(on.posterior.q)), 0.0))
    return {"method": name, "status": result.status.value, "rounds": rounds, "said": said, "moved": moved}


def main():
    """Prints a table, and ends with an error where a run said *converged* too early."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--methods", nargs="*", default=list(pt.methods.NAMED))
    options.add_argument("--further", type=int, default=100)
    options.add_argument("--json", action="store_true")
    chosen, rows = options.parse_args(), []
    for problem, model, prior, parts in problems():
        for name in chosen.methods:
            row = {"problem": problem} | judged(name, model, prior, parts, chosen.further)
            rows.append(row)
            if not chosen.json:
                moved = "" if row["moved"] is None else f"{row['moved']:.1e}"
                line = f"{problem:27}{name:25}{row['status']:14}{row['rounds']:7.1f}{row['said']:10.1e}{moved:>10}"
                print(line, flush=True)
    if chosen.json:
        print(json.dumps(rows))
    early = [row for row in rows if row["moved"] is not None and not row["moved"] <= LIMIT]
    sys.exit(f"{len(early)} runs said converged more than {LIMIT} standard deviations too early." if early else 0)


if __name__ == "__main__":
    main()
