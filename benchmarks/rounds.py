"""Rounds of synchronous runs until the free energy is within 20, 5, 1 and 0.1 nats of that of global VI.

A round is one answer of every client, and rounds that were set aside count. Every problem is run as it is divided by
nature or in the paper, and in further divisions that are skewed in labels and sizes. Of asynchronous runs, answers of
the slowest client are counted until the free energy stays there. Every division has a process of its own, and what it
has found is kept under `results/rounds`, so that a run that was interrupted goes on.
"""

import argparse
import contextlib
import csv
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import numpy as np

import partita as pt
from partita.server.bound import partition_free_energy

jax.config.update("jax_enable_x64", True)
MARKS = (20.0, 5.0, 1.0, 0.1)
ANSWERS = 6
"""So many answers of the slowest client should suffice."""
KEPT = pathlib.Path(__file__).parent / "results" / "rounds"
QUIET = pt.Monitor(progress=False)


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
    "ADMM": lambda clients: pt.methods.bayesian_admm(SOLVER),
    "Newton": lambda clients: pt.methods.global_vi(),
}
"""Synchronous rules. Newton's is a step by all clients' gradients and Hessians, guarded by the free energy."""
QUICK = {
    "default": lambda clients: pt.methods.asynchronous(SOLVER),
    "0.5": lambda clients: pt.methods.asynchronous(SOLVER, damping=0.5),
    "1/M": lambda clients: pt.methods.asynchronous(SOLVER, damping=1 / clients),
}
"""Asynchronous rules."""
FAMILIES = {"full": pt.FullGaussian, "mean-field": pt.MeanFieldGaussian}


class Cell(NamedTuple):
    """What a process of its own runs: one division of one problem."""

    problem: str
    family: str
    deal: int
    slowest: float
    """How much slower every other client is; 0 for synchronous runs."""

    @property
    def path(self) -> pathlib.Path:
        kind = f"asynchronous-{self.slowest:g}" if self.slowest else "synchronous"
        name = "-".join([*self.problem.replace(",", "").split(), self.family, str(self.deal), kind])
        return KEPT / f"{name}.json"

    @property
    def lines(self) -> dict:
        """What was found so far, by rule."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def keep(self, rule, line):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.lines | {rule: line}))
        new.replace(self.path)


class EnoughError(Exception):
    """The last mark is reached."""


def best_of(cell, family, columns, model, parts):
    """The free energy of global VI in a family, which is that of any division of the same rows.

    A division into clients of given sizes leaves a few rows to nobody.
    """
    rows = sum(int(shard.rows) for shard in parts.shards)
    path = KEPT / f"{'-'.join(cell.problem.replace(',', '').split())}-{family}-{rows}-pooled.json"
    if not path.exists():
        prior = FAMILIES[family].standard_normal(columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        found = pt.run(pt.methods.sequential(), model, prior, parts.pooled(), rounds=3, tolerance=None, monitor=QUIET)
        path.write_text(json.dumps(found.free_energy))
    return json.loads(path.read_text())


def first_below(gaps):
    """The place, from 1, of the first gap that is below each mark."""
    return [next((place for place, gap in enumerate(gaps, 1) if gap <= mark), None) for mark in MARKS]


def measured(rule, model, prior, parts, best, rounds):
    """Rounds until each mark; the default runs to its end, and every other rule to the last mark."""
    gaps, dampings, returned = [], [], []

    def look(state, row):
        gaps.append(best - partition_free_energy(model, parts, prior, state.posterior, 0))
        dampings.append(round(row["damping"], 3))
        returned.append(row["returned"])
        if rule != "default" and gaps[-1] <= MARKS[-1]:
            raise EnoughError

    status, near = "stopped here", []
    began, watch = time.process_time(), pt.Monitor(progress=False, callbacks=(look,))
    with contextlib.suppress(EnoughError):
        result = pt.run(RULES[rule](len(parts)), model, prior, parts, rounds=rounds, monitor=watch)
        status, near = result.status.value, result.history["free_energy"].tolist()
    start = best - partition_free_energy(model, parts, prior, prior, 0)
    seen = {"marks": first_below(gaps), "gaps": gaps, "damping": dampings, "returned": sum(returned), "start": start}
    seen |= {"status": status, "took": len(gaps), "seconds": round(time.process_time() - began, 1)}
    return seen, near


def _stays(clock, gaps, mark):
    """When the gap has come below a mark for good; None if it has not."""
    above = np.flatnonzero(gaps > mark)
    if not len(above):
        return 0.0
    return round(float(clock[above[-1] + 1]), 1) if above[-1] + 1 < len(gaps) else None


def settled(rule, model, prior, parts, best, slowest):
    """After how many answers of the slowest client the gap stays below each mark; every other client is quick."""
    speeds = np.where(np.arange(len(parts)) % 2, 1.0, 1.0 / slowest)
    engine, quiet = pt.LocalEngine(parts, speeds), pt.Monitor(progress=False, every=max(1, len(parts) // 5))
    rounds, began = (ANSWERS + 2) * (1 + slowest) / 2, time.process_time()
    result = pt.run(QUICK[rule](len(parts)), model, prior, engine=engine, rounds=rounds, tolerance=None, monitor=quiet)
    seen = [row for row in result.history if "free_energy" in row]
    clock, gaps = np.array([(row["clock"] / slowest, best - row["free_energy"]) for row in seen]).T
    start = best - partition_free_energy(model, parts, prior, prior, 0)
    return {
        "marks": [_stays(clock, gaps, mark) for mark in MARKS],
        "gaps": gaps.tolist(),
        "clock": clock.tolist(),
        "damping": [round(row["damping"], 3) for row in seen],
        "returned": sum(row["returned"] for row in result.history),
        "start": start,
        "status": result.status.value,
        "took": float(clock[-1]),
        "falls": int((np.diff(gaps) > 1).sum()),
        "seconds": round(time.process_time() - began, 1),
    }


def run_cell(cell, rules, rounds):
    """Runs those rules of a cell that are not there yet.

    A synchronous run with full covariance is one of mean field by way of it as well, which is kept as the family
    "nearest".
    """
    model, data, natural = PROBLEMS[cell.problem]()
    columns, default = data.x.shape[1], "default"
    rows = natural if cell.deal == 0 else dealt(np.asarray(data.y), len(natural), cell.deal)
    parts = pt.split(data, rows, drop=True)
    best, about = best_of(cell, cell.family, columns, model, parts), {"clients": len(parts), "columns": columns}
    for rule in rules:
        if rule in cell.lines:
            continue
        prior = FAMILIES[cell.family].standard_normal(columns)
        if cell.slowest:
            cell.keep(rule, settled(rule, model, prior, parts, best, cell.slowest) | about)
        elif rule == default and cell.family == "full":
            prior = pt.NearestMeanField.standard_normal(columns)
            line, near = measured(rule, model, prior, parts, best, rounds)
            own = best_of(cell, "mean-field", columns, model, parts)
            gaps = [own - value for value in near]
            lower = {"gaps": gaps, "marks": first_below(gaps), "start": own - best + line["start"]}
            cell._replace(family="nearest").keep(rule, line | lower | about)
            ended = pt.Status.CONVERGED.value if line["status"] == pt.Status.NEAREST.value else line["status"]
            cell.keep(rule, line | {"status": ended} | about)
        else:
            cell.keep(rule, measured(rule, model, prior, parts, best, rounds)[0] | about)


def shown(marks):
    return " ".join("–" if mark is None else f"{mark:g}" for mark in marks)


def over(lines, place):
    """The median and the worst of a mark over divisions; None where some have not arrived."""
    found = sorted(np.inf if line["marks"][place] is None else line["marks"][place] for line in lines)
    middle, worst = found[len(found) // 2], found[-1]
    return [None if np.isinf(number) else number for number in (middle, worst)]


def table(cells, rules):
    """Markdown: a line for each problem, family and rule."""
    heads = "problem", "clients, columns", "family", "slowest", "rule", "to 20 5 1 0.1 nats", "median", "worst", "deals"
    print(f"| {' | '.join(heads)} | ended |\n{'|---' * 10}|")
    groups = {}
    for cell in cells:
        for rule, line in cell.lines.items():
            if rule in rules:
                groups.setdefault((cell.problem, cell.family, cell.slowest, rule), {})[cell.deal] = line
    for (problem, family, slowest, rule), lines in groups.items():
        first, found = next(iter(lines.values())), list(lines.values())
        middle, worst = zip(*(over(found, place) for place in range(len(MARKS))), strict=True)
        lower = "" if all(line["gaps"][-1] <= line["start"] for line in found) else ", lower than it began"
        ended = f"{max(line['gaps'][-1] for line in found):.2g} nats, {first['status']}{lower}"
        natural = shown(lines[0]["marks"]) if 0 in lines else ""
        slow = f"1 : {slowest:g}" if slowest else ""
        about = f"{first['clients']}, {first['columns']}"
        print(
            f"| {problem} | {about} | {family} | {slow} | {rule} | {natural} | {shown(middle)} | {shown(worst)} "
            f"| {len(lines)} | {ended} |"
        )


def main():
    """Runs what is not there yet, each cell in a process of its own, and prints a table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    options.add_argument("--rules", nargs="*", default=["default"])
    options.add_argument("--families", nargs="*", default=["full"])
    options.add_argument("--deals", nargs="*", type=int, default=range(5))
    options.add_argument("--rounds", type=int, default=25)
    options.add_argument("--slowest", nargs="*", type=float, default=[0.0], help="asynchronous runs, such as 2 10 40")
    options.add_argument("--cell", help="one cell, in this process")
    options.add_argument("--anew", action="store_true", help="forget what was found of these rules")
    options.add_argument("--table", action="store_true", help="print what is there, and run nothing")
    chosen = options.parse_args()
    if chosen.cell:
        problem, family, deal, slowest = json.loads(chosen.cell)
        run_cell(Cell(problem, family, deal, slowest), chosen.rules, chosen.rounds)
        return
    asked = (chosen.deals, chosen.problems, chosen.families, chosen.slowest)
    cells = [Cell(problem, family, deal, slowest) for deal, problem, family, slowest in itertools.product(*asked)]
    for cell in cells if not chosen.table else ():
        if chosen.anew:
            for rule in chosen.rules:
                kept = {name: line for name, line in cell.lines.items() if name != rule}
                if cell.path.exists():
                    cell.path.write_text(json.dumps(kept))
        if set(chosen.rules) <= cell.lines.keys():
            continue
        rest = ["--rules", *chosen.rules, "--rounds", str(chosen.rounds)]
        done = subprocess.run([sys.executable, __file__, "--cell", json.dumps(cell), *rest], check=False)
        state = "failed" if done.returncode else ", ".join(f"{r}: {shown(x['marks'])}" for r, x in cell.lines.items())
        print(f"{' '.join(map(str, cell))}: {state}", file=sys.stderr, flush=True)
    table(sorted(cells, key=lambda cell: chosen.problems.index(cell.problem)), chosen.rules)


if __name__ == "__main__":
    main()
