"""What do per-datum factors cost? A pass over them beside a pass of natural-gradient VI on the same rows.

One client, logistic regression with 20 columns; processor seconds a pass, after compiling, of one core: with two, XLA
hands the small kernels of a loop from thread to thread, which costs more than it saves, and counts for both.
"""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from partita import Family, FullGaussian, LogisticRegression, MeanFieldGaussian, Solver, Table
from partita.data import federate
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.local.solvers import FixedPoint, InFamily, InPredictor, LocalFixedPoint
from partita.numerics.compiled import Compiled

COLUMNS, PASSES, REPEATS = 20, 5, 3


@Compiled
def solve(solver: Solver, problem: Problem) -> Family:
    return solver.solve(problem, jax.random.key(0)).q


def problem_of(rows: int, prior: Family) -> Problem:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, COLUMNS)) / np.sqrt(COLUMNS)
    y = (generator.uniform(size=rows) < 1 / (1 + np.exp(-2 * x @ np.linspace(1, -1, COLUMNS)))).astype(float)
    (shard,) = federate([Table(jnp.asarray(x), jnp.asarray(y))]).shards
    return Problem(LogisticRegression(), shard, Factor.of(prior), jnp.ones(()), prior, jnp.ones(()))


def seconds(solver: Solver, problem: Problem) -> tuple[float, float]:
    """Processor seconds of a pass, the least of some, and the megabytes of the program's buffers."""
    jax.block_until_ready(solve(solver, problem))
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        jax.block_until_ready(solve(solver, problem))
        times.append(time.process_time() - began)
    program = jax.jit(lambda p: solver.solve(p, jax.random.key(0)).q).lower(problem).compile()
    analysis = program.memory_analysis()
    return min(times) / PASSES, (analysis.temp_size_in_bytes + analysis.argument_size_in_bytes) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--cores", type=int, default=1)
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    jax.config.update("jax_enable_x64", True)
    common = {"damping": 0.5, "max_steps": PASSES, "tolerance": None}
    pooled = FixedPoint(**common, backtrack=False)
    full = {
        "natural-gradient VI": pooled,
        "all at once": LocalFixedPoint(None, None, factors=InPredictor(), **common),
        "batches of 1,000": LocalFixedPoint(None, 1_000, factors=InPredictor(), **common),
        "batches of 100": LocalFixedPoint(None, 100, factors=InPredictor(), **common),
        "batches of 10": LocalFixedPoint(None, 10, factors=InPredictor(), **common),
        "100 groups, in the family": LocalFixedPoint(100, 1, factors=InFamily(), **common),
        "in turn": LocalFixedPoint(None, 1, factors=InPredictor(), **common),
    }
    independent = {
        "natural-gradient VI": pooled,
        "all at once": LocalFixedPoint(None, None, factors=InFamily(), **common),
        "batches of 1,000": LocalFixedPoint(None, 1_000, factors=InFamily(), **common),
        "in turn": LocalFixedPoint(None, 1, factors=InFamily(), **common),
    }
    print(f"{'family':18} {'rows':>8} {'pass':26} {'ms':>9} {'µs a factor':>12} {'times VI':>9} {'MB':>8}")
    for family, solvers in ((FullGaussian, full), (MeanFieldGaussian, independent)):
        for rows in given.rows:
            problem, whole = problem_of(rows, family.standard_normal(COLUMNS)), 0.0
            for name, solver in solvers.items():
                took, size = seconds(solver, problem)
                whole = whole or took
                cost = f"{1e3 * took:9.2f} {1e6 * took / rows:12.3f} {took / whole:9.2f} {size:8.1f}"
                print(f"{family.__name__:18} {rows:8d} {name:26} {cost}", flush=True)


if __name__ == "__main__":
    main()
