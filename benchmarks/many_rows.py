"""Posteriors of twenty clients' rows by sequential PVI, against statsmodels' GLM on the pooled rows, by rows.

Logistic regression with 50 columns, prior N(0, I), defaults throughout: full covariance and mean-field, each until it
says that it has converged. Every number of rows has a process of its own, in which fits alternate. Times are seconds
of CPU of warm fits, medians, and ratios are formed within a repeat; memory is the peak beyond what the process held
before the first fit of its kind, compilation included.

    python benchmarks/many_rows.py [--rows 10000 100000 1000000] [--repeats 3] [--json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import jax
import numpy as np

import partita as pt

COLUMNS, CLIENTS = 50, 20
FAMILIES = {"mean-field": pt.MeanFieldGaussian, "full covariance": pt.FullGaussian}


def generated(rows):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, COLUMNS))
    x[:, 0] = 1
    chance = 1 / (1 + np.exp(-x @ (0.3 * rng.standard_normal(COLUMNS))))
    return x, (rng.random(rows) < chance).astype(float)


def held():
    """Bytes that the process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def timed(function):
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def measured(rows, repeats):
    """What fits of so many rows took."""
    import statsmodels.api as sm

    jax.config.update("jax_enable_x64", True)
    x, y = generated(rows)
    parts = [pt.Table(*part) for part in zip(np.array_split(x, CLIENTS), np.array_split(y, CLIENTS), strict=True)]
    partition = pt.federate(parts)
    fits = {
        name: lambda family=family: pt.methods.fit(
            "sequential", pt.LogisticRegression(), family.standard_normal(COLUMNS), partition
        )
        for name, family in FAMILIES.items()
    }
    fits["statsmodels"] = lambda: sm.GLM(y, x, family=sm.families.Binomial()).fit()
    report, seconds = {}, {name: [] for name in fits}
    for name, fit in fits.items():
        before = held()
        cold, result = timed(fit)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        report[name] = {"cold": cold, "megabytes": max(0, peak - before) / 1e6}
        if name in FAMILIES:
            report[name] |= {"communications": len(result.history), "status": result.status.name.lower()}
    for _ in range(repeats):
        for name, fit in fits.items():
            seconds[name].append(timed(fit)[0])
    for name, taken in seconds.items():
        ratio = np.array(taken) / np.array(seconds["statsmodels"])
        report[name] |= {"seconds": float(np.median(taken)), "ratio": float(np.median(ratio))}
    return {"rows": rows, "fits": report}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this process: one number of rows")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measured(arguments.rows[0], arguments.repeats)))
        return
    for rows in arguments.rows:
        command = [sys.executable, __file__, "--here", "--rows", str(rows), "--repeats", str(arguments.repeats)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        for name, row in found["fits"].items():
            said = f", {row['communications']} communications, {row['status']}" if name in FAMILIES else ""
            print(
                f"{rows:9,} rows, {name:15s} {row['seconds']:7.2f} s, ratio {row['ratio']:.2f}, "
                f"{row['megabytes']:.0f} MB{said}",
                flush=True,
            )


if __name__ == "__main__":
    main()
