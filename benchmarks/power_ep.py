"""Power EP on Adult with a site for every row: time and memory of a pass, and whole runs compared with PVI.

A pass matches every row's site once, in turn: two numbers and a scale a row with a full covariance. Its time is taken
from a compiled pass on 2,500 to 39,000 rows, interleaved and repeated; its memory is what the compiled program asks for
beyond its arguments and results. Then ten clients, to whom rows are dealt at random, run sequential power EP with α in
1, 0.5 and 0.1, and sequential PVI with Newton's method, until every client's answer lies within 1e-6 nats.

    python benchmarks/power_ep.py [--repeats 7] [--json]
"""

import argparse
import dataclasses
import functools
import json
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

import partita as pt
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.numerics.compiled import Compiled

ROWS = (2_500, 5_000, 10_000, 20_000, 39_000)
ALPHAS = (1.0, 0.5, 0.1)
CLIENTS = 10


@Compiled
def one_pass(solver, problem, progress, key):
    return solver.step(problem, progress, 0, key)


def read_clocks():
    """Wall-clock and CPU seconds; on a shared machine the latter are more reliable."""
    return np.array([time.perf_counter(), time.process_time()])


def clocks(seconds):
    return dict(zip(("seconds", "cpu_seconds"), seconds.tolist(), strict=True))


def problem_of(table):
    """A client with these rows, whose context is the prior."""
    prior = pt.FullGaussian.standard_normal(table.x.shape[1])
    one = np.ones(())
    return Problem(pt.LogisticRegression(), pt.federate([table]).shards[0], Factor.of(prior), one, prior, one)


def passes(table, repeats):
    """Seconds and bytes of a pass, by rows."""
    solver, key, found = pt.solvers.PowerEP(alpha=1.0), jax.random.key(0), {}
    problems = {rows: problem_of(pt.Table(table.x[:rows], table.y[:rows])) for rows in ROWS}
    starts = {rows: solver.init(problem, key) for rows, problem in problems.items()}
    for _ in range(2):  # the output of the first pass is compiled for once more
        starts = {rows: one_pass(solver, problem, starts[rows], key) for rows, problem in problems.items()}
    seconds = {rows: [] for rows in ROWS}
    for _ in range(repeats):
        for rows, problem in problems.items():
            start = read_clocks()
            jax.block_until_ready(one_pass(solver, problem, starts[rows], key))
            seconds[rows].append(read_clocks() - start)
    for rows, problem in problems.items():
        step = jax.jit(lambda progress, problem=problem: solver.step(problem, progress, 0, key))
        analysis = step.lower(starts[rows]).compile().memory_analysis()
        found[rows] = {**clocks(np.median(seconds[rows], axis=0)), "bytes": analysis.temp_size_in_bytes}
    return found


def runs(table):
    """Whole runs: time, communications, passes or Newton steps, and results."""
    order = np.random.default_rng(0).permutation(len(table.y))
    parts = pt.federate([pt.Table(table.x[rows], table.y[rows]) for rows in np.array_split(order, CLIENTS)])
    prior = pt.FullGaussian.standard_normal(table.x.shape[1])
    methods = {
        f"power EP, α = {alpha:g}": dataclasses.replace(
            pt.methods.power_ep(alpha), solver=pt.solvers.PowerEP(alpha=alpha, tolerance=1e-8)
        )
        for alpha in ALPHAS
    }
    methods["PVI"] = pt.methods.sequential()
    found = {}
    for name, method in methods.items():
        whole = functools.partial(pt.run, method, pt.LogisticRegression(), prior, parts, monitor=pt.Monitor(every=0))
        whole(communications=1)  # compiles
        start = read_clocks()
        result = whole()
        seconds = read_clocks() - start
        found[name] = {
            **clocks(seconds),
            "status": result.status.value,
            "communications": result.state.communications,
            "steps": result.state.gradient_steps,
            "log_evidence": result.log_evidence if method.solver.estimates_evidence else None,
            "sd": float(np.mean(result.posterior.q.sd)),
            "skipped": sum(sum(row["skipped"].values()) for row in result.history.rows),
            "unconverged": sum(len(row["unconverged"]) for row in result.history.rows),
        }
    return found


def show(report):
    console = Console(width=140)
    table = RichTable(
        "rows",
        "ms a pass",
        "CPU ms",
        "CPU µs a row",
        "MB besides arguments",
        title="A pass of power EP, full covariance",
    )
    for rows, row in report["passes"].items():
        wall, cpu = 1e3 * row["seconds"], 1e3 * row["cpu_seconds"]
        table.add_row(f"{rows:,}", f"{wall:.0f}", f"{cpu:.0f}", f"{1e3 * cpu / rows:.1f}", f"{row['bytes'] / 1e6:.1f}")
    console.print(table)
    table = RichTable(
        "method",
        "seconds",
        "CPU seconds",
        "ended",
        "communications",
        "passes or steps",
        "mean sd",
        "log evidence",
        "skipped",
        "unconverged",
    )
    for name, row in report["runs"].items():
        table.add_row(
            name,
            f"{row['seconds']:.1f}",
            f"{row['cpu_seconds']:.1f}",
            row["status"],
            f"{row['communications']}",
            f"{row['steps']}",
            f"{row['sd']:.4f}",
            "" if row["log_evidence"] is None else f"{row['log_evidence']:.2f}",
            f"{row['skipped']}",
            f"{row['unconverged']}",
        )
    console.print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    train = pt.datasets.adult().train
    report = {"passes": passes(train, arguments.repeats), "runs": runs(train)}
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


if __name__ == "__main__":
    main()
