"""Synthetic results of runs, for tests of reports and figures."""

import numpy as np

from partita_experiments.report import Statement
from partita_experiments.results import Results


def cell(
    method,
    nll,
    seed=0,
    problem="credit B",
    step=10,
    statuses=("budget spent",),
    free_energy=-1.0,
    run=None,
    settings=None,
    error=0.2,
    pruned=0,
):
    """`error` and `pruned` are numbers, or sequences with one number per evaluation."""
    errors, counts = (np.broadcast_to(values, len(nll)).tolist() for values in (error, pruned))
    rows = [
        {
            "communications": step * (k + 1),
            "clock": 2.0 * (k + 1),
            "rounds": k + 1,
            "gradient_steps": 3,
            "synchronous_steps": 50 * (k + 1),
            "free_energy": free_energy,
            "residual": "inf",
            "nll": value,
            "error": errors[k],
            "pruned": counts[k],
        }
        for k, value in enumerate(nll)
    ]
    return {
        "problem": problem,
        "run": run or method,
        "method": method,
        "settings": settings or {},
        "seed": seed,
        "rows": rows,
        "statuses": list(statuses),
        "seconds": 1.0 + seed,
    }


def verdicts(parts):
    return {part.text: (part.holds, part.seen) for part in parts if isinstance(part, Statement)}


DIGESTS = {"digest": "a" * 16, "data": "b" * 16, "program": "c" * 16, "version": "0.1.0", "jax": "0.10.2"}
"""What a stored cell has beside its results."""
NOISE = (-0.01, 0.0, 0.01)


def results_of_all_methods(problem="credit B", noise=None, **nll):
    """Three seeds of every method; the final NLL is 0.3 by default, and `noise` makes a method's seeds differ."""
    methods = ["sequential", "synchronous", "asynchronous", "global_vi", "bcm_same", "bcm_split", "vcl", "streaming_vb"]
    return Results(
        [
            cell(
                method,
                [value + (noise or {}).get(method, 0) * NOISE[seed] for value in nll.get(method, [0.5, 0.3])],
                seed,
                problem,
            )
            for method in methods
            for seed in range(3)
        ]
    )


CLIENTS = {
    "credit B": [
        {"client": "a", "rows": 36, "labels": 2, "positive": 0.944},
        {"client": "b", "rows": 67, "labels": 1, "positive": 0.3},
    ]
}
