"""Communications of mean-field networks until 97% and 98% of the test rows are right, by several methods.

Digits (64-50-10) of ten clients with two digits each and of fifty alike; MNIST (784-200-10) of ten alike and of a
hundred with two digits each. Every run has a process of its own, and what it has found is kept under
`results/networks`, so that only what is missing is run. MNIST is found under `PARTITA_DATA`.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

import partita as pt
from partita.server.bound import partition_free_energy

KEPT = pathlib.Path(__file__).parent / "results" / "networks"
MARKS = (0.03, 0.02)
AT_MARK = "free_energy_at_97%"
DRAWS = 20


def digits():
    return pt.datasets.digits()


def mnist():
    from partita_experiments.datasets.mnist import mnist as images

    return images()


class Problem(NamedTuple):
    """Rows, how they are divided, a network, and how clients climb in methods whose visits are more than a gradient."""

    data: Callable
    split: Callable
    widths: tuple[int, ...]
    solver: pt.Gradient
    every: int
    """Communications between two looks at the test rows, of methods that take one client at a time."""


def alike(clients):
    return lambda y, seed: pt.partitioners.equal_random(len(y), clients, seed=seed)


def two_digits(clients):
    return lambda y, seed: pt.partitioners.label_shards(y, clients, 2, seed=seed)


DIGITS = pt.Gradient(learning_rate=0.02, max_steps=200, window=50)
IMAGES = pt.Gradient(learning_rate=0.01, max_steps=400, window="epoch", batch_size=256, tolerance=0.5)
PROBLEMS = {
    "digits, two digits each, 10": Problem(digits, two_digits(10), (64, 50, 10), DIGITS, 10),
    "digits, alike, 50": Problem(digits, alike(50), (64, 50, 10), DIGITS, 50),
    "MNIST, alike, 10": Problem(mnist, alike(10), (784, 200, 10), IMAGES, 2),
    "MNIST, two digits each, 100": Problem(mnist, two_digits(100), (784, 200, 10), IMAGES, 20),
}
RULES = {
    "synchronous": lambda start, solver, clients: pt.methods.synchronous(solver, start=start),
    "synchronous, 1/M": lambda start, solver, clients: pt.methods.synchronous(solver, 1 / clients, start=start),
    "sequential": lambda start, solver, clients: pt.methods.sequential(solver, start=start),
    "incremental": lambda start, solver, clients: pt.methods.incremental_vi(start=start),
    "ADMM": lambda start, solver, clients: pt.methods.bayesian_admm(solver, start=start),
}
"""Methods by their defaults, but for the clients' solver, and for what the network's posterior begins at."""


class Cell(NamedTuple):
    """What a process of its own runs."""

    problem: str
    rule: str
    seed: int
    communications: int

    @property
    def path(self):
        return KEPT / (
            "-".join(f"{self.problem} {self.rule} {self.seed}".replace(",", "").replace("/", "").split()) + ".json"
        )

    @property
    def line(self):
        """What was found, if as many communications were asked for."""
        line = json.loads(self.path.read_text()) if self.path.exists() else None
        return line if line and line["communications"] >= self.communications else None


def single(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)


def run_cell(cell):
    """Runs a method, looks at the test rows as it goes, and keeps what was seen at every look."""
    problem = PROBLEMS[cell.problem]
    data = problem.data()
    rows = problem.split(np.asarray(data.train.y), cell.seed)
    parts, test = pt.split(single(data.train), rows), single(data.test)
    network = pt.models.NetworkClassifier(problem.widths)
    like = single(network.template())
    prior, start = pt.MeanFieldGaussian.standard_normal(like), pt.MeanFieldGaussian.tight(like, cell.seed)
    method = RULES[cell.rule](start, problem.solver, len(parts))
    looked, at_mark, answers = [], [], method.answers(len(parts))

    def free_energy(q):
        return float(partition_free_energy(network, parts, prior, q, cell.seed))

    @jax.jit
    def wrong(q, key):
        likely = jax.vmap(lambda theta: network.response(theta, test.x))(q.sample(key, (DRAWS,))).mean(0)
        return (likely.argmax(1) != test.y).mean()

    def keep(status, communications=0, value=np.nan):
        found = {"looked": looked, "free_energy": value, "status": status, "communications": communications}
        found[AT_MARK] = at_mark[0] if at_mark else None
        KEPT.mkdir(parents=True, exist_ok=True)
        cell.path.with_suffix(".new").write_text(json.dumps(found | {"seconds": round(time.process_time())}))
        cell.path.with_suffix(".new").replace(cell.path)

    def look(state, row):
        if row["communications"] % problem.every < answers:
            error = float(wrong(state.posterior, jax.random.key(cell.seed)))
            looked.append((int(row["communications"]), error, round(float(row["damping"]), 3), bool(row["returned"])))
            if error <= MARKS[0] and not at_mark:
                at_mark.append(free_energy(state.posterior))
            keep("interrupted")

    watch = pt.Monitor(progress=False, every=0, callbacks=(look,))
    budget = {"communications": cell.communications, "tolerance": None, "seed": cell.seed}
    result = pt.run(method, network, prior, parts, monitor=watch, **budget)
    value = free_energy(result.posterior.q)
    keep(result.status.value, max(cell.communications, result.state.communications), value)


def arrived(line, mark):
    """After how many communications the error is first at most the mark."""
    return next((f"{look[0]:,}" for look in line["looked"] if look[1] <= mark), "–")


def table(cells):
    """Markdown: a line for each problem and method, and a number for each seed."""
    print(
        "| problem | method | to 97% | to 98% | free energy at 97% | error at the end | free energy | communications | "
        "set aside | ended |"
    )
    print("|---" * 10 + "|")
    for (problem, rule), group in itertools.groupby(cells, key=lambda cell: cell[:2]):
        lines = [json.loads(cell.path.read_text()) for cell in group if cell.path.exists()]
        if lines:
            each = [
                " / ".join(arrived(line, MARKS[0]) for line in lines),
                " / ".join(arrived(line, MARKS[1]) for line in lines),
                " / ".join("–" if (value := line[AT_MARK]) is None else f"{value:,.0f}" for line in lines),
                " / ".join(f"{100 * line['looked'][-1][1]:.1f}%" for line in lines),
                " / ".join(f"{line['free_energy']:,.0f}" for line in lines),
                " / ".join(f"{line['looked'][-1][0]:,}" for line in lines),
                " / ".join(f"{sum(look[3] for look in line['looked'])}" for line in lines),
                " / ".join(dict.fromkeys(line["status"] for line in lines)),
            ]
            print(f"| {problem} | {rule} | {' | '.join(each)} |")


def main():
    """Runs what is not there yet, each run in a process of its own, and prints a table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    options.add_argument("--rules", nargs="*", default=list(RULES))
    options.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    options.add_argument("--communications", type=int, default=1000)
    options.add_argument("--cell", help="one run, in this process")
    options.add_argument("--table", action="store_true", help="print what is there, and run nothing")
    chosen = options.parse_args()
    if chosen.cell:
        run_cell(Cell(*json.loads(chosen.cell)))
        return
    asked = itertools.product(chosen.problems, chosen.rules, chosen.seeds, [chosen.communications])
    cells = [Cell(*each) for each in asked]
    for cell in cells if not chosen.table else ():
        if cell.line is None:
            done = subprocess.run([sys.executable, __file__, "--cell", json.dumps(cell)], check=False)
            print(f"{cell}: {'failed' if done.returncode else 'done'}", file=sys.stderr, flush=True)
    table(cells)


if __name__ == "__main__":
    main()
