"""What the paper says of early stopping beside global VI (`sec:experiments:fmnist`), judged."""

import numpy as np

from partita_experiments.figure import label
from partita_experiments.judge import TOLERANCE, clearly, higher, spread
from partita_experiments.report import Part, ReportTable, Statement
from partita_experiments.results import Results

EARLY = "early stopping"
OVERFITTING = (
    "streaming_vb",
    "streaming_vb, early stopping",
    "sequential, early stopping",
    "synchronous, early stopping",
)
"""The runs of which the paper says that they over-fit the training rows."""


def early_and_global(results: Results, problem: str) -> list[Part]:
    """What the paper says of early stopping beside global VI."""
    parts: list[Part] = []
    reference = f"global_vi, {EARLY}"
    if results.has(problem, "global_vi", reference):
        parts.append(_finds_the_best(results, problem, reference))
    for method in ("sequential", "streaming_vb"):
        run = f"{method}, {EARLY}"
        parts += [
            higher(results, problem, other, run)
            for other in (reference, "global_vi")
            if results.has(problem, run, other)
        ]
    if results.has(problem, reference) and "train_nll" in results.of(problem, reference)[0]["rows"][0]:
        shown = [run for run in results.runs if results.has(problem, run)]
        rows = [
            [label(run), *(spread(results.final(problem, run, name)) for name in ("train_nll", "nll"))] for run in shown
        ]
        rows = [[*row, spread(_gap(results, problem, run))] for row, run in zip(rows, shown, strict=True)]
        parts.append(ReportTable(["method", "training NLL", "test NLL", "difference"], rows))
        parts += [_overfits(results, problem, run, reference) for run in OVERFITTING if results.has(problem, run)]
    begun = f"sequential, {EARLY} from the posterior"
    if results.has(problem, "sequential", begun):
        parts.append(_never_early(results, problem, begun))
    return parts


def _finds_the_best(results: Results, problem: str, early: str) -> Statement:
    lowest = np.nanmin(results.curve(problem, "global_vi").values, axis=1)
    gap = results.final(problem, early) - lowest
    stopped = np.median([cell["rows"][-1]["communications"] for cell in results.of(problem, early)])
    return Statement(
        f"{problem}: {label(early)}, ends within {TOLERANCE} of the lowest test NLL that global VI passes through.",
        bool(np.abs(gap).mean() <= TOLERANCE),
        f"{spread(gap)} above it, after {stopped:.0f} communications; global VI ends "
        f"{spread(results.final(problem, 'global_vi') - lowest)} above it.",
    )


def _gap(results: Results, problem: str, run: str) -> np.ndarray:
    """The test NLL less the training NLL."""
    return results.final(problem, run) - results.final(problem, run, "train_nll")


def _overfits(results: Results, problem: str, run: str, reference: str) -> Statement:
    more = _gap(results, problem, run) - _gap(results, problem, reference)
    larger = f"test NLL less training NLL is larger than of {label(reference)}, by more than 2 sd, and by more than"
    return clearly(
        f"{problem}: {label(run)} over-fits: {larger} {TOLERANCE}.", more, TOLERANCE, f"larger by {spread(more)}."
    )


def _never_early(results: Results, problem: str, begun: str) -> Statement:
    """Compares runs with visits begun at the posterior, with and without early stopping."""
    gap = results.final(problem, begun) - results.final(problem, "sequential")
    steps = [
        np.mean(
            [
                cell["rows"][-1]["gradient_steps"] / cell["rows"][-1]["communications"]
                for cell in results.of(problem, run)
            ]
        )
        for run in (begun, "sequential")
    ]
    return Statement(
        f"{problem}: where visits begin at the posterior, early stopping changes nothing: sequential PVI ends within "
        f"{TOLERANCE} of the NLL without it.",
        bool(np.abs(gap).mean() <= TOLERANCE),
        f"{spread(gap)} above it, with {steps[0]:.0f} and {steps[1]:.0f} steps a visit.",
    )
