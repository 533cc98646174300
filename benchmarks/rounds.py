"""Rounds of synchronous runs until the free energy is within 20, 5, 1 and 0.1 nats of that of global VI.

A round is one answer of every client, and rounds that were set aside count. Every problem is run as it is divided by
nature or in the paper, and in further divisions that are skewed in labels and sizes.
"""

import argparse
import csv
import json
import os
import pathlib
import sys

import jax
import numpy as np

import partita as pt

jax.config.update("jax_enable_x64", True)
MARKS = (20.0, 5.0, 1.0, 0.1)


def dealt(y, clients, seed):
    """The rows of each client: sizes differ by an order of magnitude, and labels are nearly sorted."""
    generator = np.random.default_rng(seed)
    order = np.argsort(np.argsort(y) / len(y) + generator.normal(0, 0.3, len(y)))
    sizes = 3 + generator.dirichlet(np.ones(clients)) * (len(y) - 3 * clients)
    return np.split(order, np.cumsum(sizes)[:-1].astype(int))


def uci(name, beta, kappa):
    """One of the paper's tables, divided among ten clients as there."""
    from partita_experiments.datasets import uci as tables

    data = (pt.datasets.adult() if name == "adult" else getattr(tables, name)()).train
    return pt.LogisticRegression(), data, pt.partitioners.beta_kappa(np.asarray(data.y), 10, beta, kappa)


def breast_cancer():
    data = pt.datasets.breast_cancer().train
    return pt.LogisticRegression(), data, pt.partitioners.equal_random(len(data.y), 10)


def heart():
    from partita_experiments.datasets.heart import heart_frames
    from partita_experiments.source import Division, FrameSource

    source = FrameSource(heart_frames())
    names = list(source.owners)
    tables, _ = source.tables(Division([source.owners[name] for name in names], names), 10.0, True)
    return pt.LogisticRegression(), *joined(tables)


def mortality():
    from partita_experiments.datasets.physionet import physionet_frames
    from partita_experiments.source import Division, FrameSource

    source = FrameSource({"all": physionet_frames()})
    rows = np.arange(len(source.y))
    parts = pt.partitioners.k_means(source.inputs(rows, 10.0), 5)
    tables, _ = source.tables(Division(parts, None), 10.0, True)
    return pt.LogisticRegression(), *joined(tables)


def joined(tables):
    """All rows, and whose each is."""
    ends = np.cumsum([len(table.y) for table in tables])
    data = pt.Table(*(np.concatenate([np.asarray(getattr(table, name)) for table in tables]) for name in ("x", "y")))
    return data, np.split(np.arange(ends[-1]), ends[:-1])


def counts(name, columns, response, client, offset=None):
    """A table of counts; those columns that are no numbers become indicators."""
    path = pathlib.Path(os.environ["PARTITA_DATA"]) / "counts" / f"MASS_{name}.csv"
    rows = [row for row in csv.DictReader(path.open()) if offset is None or float(row[offset]) > 0]
    blocks = []
    for column in columns:
        texts = [row[column] for row in rows]
        try:
            numbers = np.array(texts, float)
            blocks.append(((numbers - numbers.mean()) / numbers.std())[:, None])
        except ValueError:
            blocks.append(np.array([[text == level for level in sorted(set(texts))[1:]] for text in texts], float))
    if offset is not None:
        blocks.append(np.log([[float(row[offset]) / 1000] for row in rows]))
    x = pt.with_intercept(np.hstack(blocks))
    who = np.array([row[client] for row in rows])
    return (
        pt.PoissonRegression(),
        pt.Table(x, np.array([float(row[response]) for row in rows])),
        [np.flatnonzero(who == one) for one in sorted(set(who))],
    )


def generated(clients):
    """Rare columns with nearly one label, and clients of 3 to some hundred rows."""
    generator = np.random.default_rng(clients)
    rows, rare = 30 * clients, 8
    x = np.hstack([generator.normal(size=(rows, 8)), generator.random((rows, rare)) < 0.004])
    x = np.asarray(pt.with_intercept(x))
    logits = x @ [-1.0, *generator.normal(0, 0.7, 8), *np.where(generator.random(rare) < 0.5, -4.0, 4.0)]
    y = (generator.random(rows) < 1 / (1 + np.exp(-logits))).astype(float)
    return pt.LogisticRegression(), pt.Table(x, y), dealt(y, clients, 0)


PROBLEMS = {
    "adult A": lambda: uci("adult", 0.0, 0.0),
    "adult B": lambda: uci("adult", 0.7, -3.0),
    "bank B": lambda: uci("bank", 0.7, -3.0),
    "credit B": lambda: uci("credit", 0.3, -0.7),
    "heart": heart,
    "mortality": mortality,
    "breast cancer": breast_cancer,
    "ships": lambda: counts("ships", ("type", "year", "period"), "incidents", "type", "service"),
    "epilepsy": lambda: counts("epil", ("trt", "lbase", "lage", "V4"), "y", "subject"),
    "generated, 100": lambda: generated(100),
    "generated, 1000": lambda: generated(1000),
}
SOLVER = pt.Newton(tolerance=1e-4)
RULES = {
    "default": lambda clients: pt.methods.synchronous(SOLVER),
    "1/M": lambda clients: pt.methods.synchronous(SOLVER, damping=1 / clients),
    "0.2": lambda clients: pt.methods.synchronous(SOLVER, damping=0.2),
    "0.5": lambda clients: pt.methods.synchronous(SOLVER, damping=0.5),
    "async": lambda clients: pt.methods.asynchronous(SOLVER),
    "async 0.5": lambda clients: pt.methods.asynchronous(SOLVER, damping=0.5),
    "async 1/M": lambda clients: pt.methods.asynchronous(SOLVER, damping=1 / clients),
    "ADMM": lambda clients: pt.methods.bayesian_admm(SOLVER),
}
FAMILIES = {"full": pt.FullGaussian, "mean-field": pt.MeanFieldGaussian}


def measured(rule, model, prior, parts, best, rounds):
    """Rounds until each mark, the gap at the end, and how many rounds were set aside."""
    result = pt.run(RULES[rule](len(parts)), model, prior, parts, rounds=rounds, monitor=pt.Monitor(progress=False))
    gaps = [best - row["free_energy"] for row in result.history]
    first = [next((place for place, gap in enumerate(gaps, 1) if gap <= mark), None) for mark in MARKS]
    dampings = [round(row["damping"], 3) for row in result.history]
    return {
        "rounds": first,
        "gap": best - result.free_energy,
        "gaps": gaps,
        "damping": dampings,
        "status": result.status.value,
        "took": len(gaps),
    }


def _stays(clock, gaps, mark):
    """When the gap has come below a mark for good; None if it has not."""
    above = np.flatnonzero(gaps > mark)
    if not len(above):
        return 0.0
    return round(float(clock[above[-1] + 1]), 1) if above[-1] + 1 < len(gaps) else None


def settled(rule, model, prior, parts, best, answers, slowest):
    """After how many answers of the slowest client the gap stays below each mark; every other client is quick."""
    speeds = np.where(np.arange(len(parts)) % 2, 1.0, 1.0 / slowest)
    engine, quiet = pt.LocalEngine(parts, speeds), pt.Monitor(progress=False)
    rounds = answers * (1 + slowest) / 2
    result = pt.run(RULES[rule](len(parts)), model, prior, engine=engine, rounds=rounds, tolerance=None, monitor=quiet)
    clock, gaps = np.array([(row["clock"] / slowest, best - row["free_energy"]) for row in result.history]).T
    return {
        "rounds": [_stays(clock, gaps, mark) for mark in MARKS],
        "gap": gaps[-1],
        "gaps": gaps[:: len(parts)],
        "damping": [round(row["damping"], 3) for row in result.history][:: len(parts)],
        "status": result.status.value,
        "took": len(gaps),
        "falls": int((np.diff(gaps) > 1).sum()),
    }


def main():
    """Prints a table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    options.add_argument("--rules", nargs="*", default=["default"])
    options.add_argument("--families", nargs="*", default=["full"])
    options.add_argument("--deals", type=int, default=5)
    options.add_argument("--rounds", type=int, default=25)
    options.add_argument(
        "--slowest", type=float, help="asynchronous runs in which every other client is so much slower"
    )
    options.add_argument("--verbose", action="store_true")
    options.add_argument("--json", action="store_true")
    chosen, lines = options.parse_args(), []
    for problem in chosen.problems:
        model, data, natural = PROBLEMS[problem]()
        for family in chosen.families:
            prior = FAMILIES[family].standard_normal(data.x.shape[1])
            for deal in range(chosen.deals):
                rows = natural if deal == 0 else dealt(np.asarray(data.y), len(natural), deal)
                parts = pt.split(data, rows, drop=True)
                quiet = pt.Monitor(progress=False)
                best = pt.run(
                    pt.methods.sequential(), model, prior, parts.pooled(), rounds=1, monitor=quiet
                ).free_energy
                for rule in chosen.rules:
                    line = {"problem": problem, "clients": len(parts), "family": family, "deal": deal, "rule": rule}
                    line |= (
                        settled(rule, model, prior, parts, best, chosen.rounds, chosen.slowest)
                        if chosen.slowest
                        else measured(rule, model, prior, parts, best, chosen.rounds)
                    )
                    lines.append(line)
                    shown = " ".join("–" if mark is None else str(mark) for mark in line["rounds"])
                    if not chosen.json:
                        ended = f"{line['took']:3} {line['gap']:.2g} {line['status']}"
                        print(f"{problem:16} {family:10} {deal} {rule:8} {shown:12} {ended}")
                    if chosen.verbose:
                        print([f"{gap:.3g}" for gap in line["gaps"]], line["damping"])
                    sys.stdout.flush()
    if chosen.json:
        print(json.dumps(lines))


if __name__ == "__main__":
    main()
