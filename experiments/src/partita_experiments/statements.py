"""The report of each experiment: tables, and the paper's statements with the observed results."""

from collections.abc import Callable, Mapping

import numpy as np

from partita_experiments import growth, images, local_steps, order, schedules
from partita_experiments.config import Experiment
from partita_experiments.figure import Drawing, label
from partita_experiments.judge import (
    PAPER_SCHEDULES,
    TOLERANCE,
    beside_global,
    clearly,
    common,
    count,
    each,
    median_reached_at,
    rises,
    spread,
)
from partita_experiments.report import Heading, Part, ReportTable, Statement
from partita_experiments.results import Results
from partita_experiments.store import Clients

FLAMBY = {"FLamby: pooled": 0.795, "FLamby: FedAdam": 0.779, "FLamby: FedAvg": 0.748}
"""Published accuracies of logistic regression on Fed-Heart-Disease (Ogier du Terrail et al. 2022)."""
TABLE = {
    "adult A": (3907, 0.240, 3907, 0.240),
    "adult B": (1172, 0.959, 6642, 0.111),
    "bank A": (3616, 0.117, 3616, 0.117),
    "bank B": (1085, 0.466, 6148, 0.054),
    "credit A": (52, 0.550, 52, 0.550),
    "credit B": (36, 0.944, 67, 0.337),
}
"""`tab:uci_splits`: N_small, η_small, N_large, η_large."""


def uci(results: Results, clients: Clients) -> list[Part]:
    """`sec:experiments:uci`."""
    parts: list[Part] = [Heading("The clients (`tab:uci_splits`, table 2)"), _splits(clients), *common(results)]
    parts += [Heading("The paper's statements")]
    for problem in results.problems:
        parts += _reaches_global(results, problem, 0.01 if problem.startswith("credit") else 0.002)
        if problem.endswith("A"):
            parts += beside_global(_one_round, results, problem, PAPER_SCHEDULES)
        if problem.endswith("B"):
            parts += beside_global(_worse, results, problem, ("bcm_same", "bcm_split", "vcl"))
        if problem.startswith("credit"):
            parts += each(rises, results, problem, ("streaming_vb",))
        else:
            parts += beside_global(_harmless, results, problem, ("streaming_vb",))
    return parts


def mortality(results: Results, clients: Clients) -> list[Part]:
    """`sec:experiments:mp`."""
    parts: list[Part] = [Heading("The clients (in the form of `tab:mimic3_splits`)"), _clients(clients)]
    parts += [*common(results), Heading("The paper's statements")]
    for problem in results.problems:
        parts += _reaches_global(results, problem, 0.01)
    if {"logistic regression", "network"} <= set(results.problems):
        parts += [_smoother(results, method) for method in PAPER_SCHEDULES if method in results.runs]
    return parts


def heart(results: Results, clients: Clients) -> list[Part]:
    """The four hospitals, beside FLamby's published figures."""
    parts: list[Part] = [Heading("The hospitals"), _clients(clients), *common(results)]
    for problem in results.problems:
        errors = {method: results.final(problem, method, "error").mean() for method in results.runs}
        rows = [[label(method), f"{1 - error:.3f}"] for method, error in errors.items()]
        rows += [[name, f"{accuracy:.3f}"] for name, accuracy in FLAMBY.items()]
        parts += [Heading("Accuracy on the pooled test rows"), ReportTable(["method", "accuracy"], rows)]
        parts += [Heading("Statements"), *_reaches_global(results, problem, 0.01)]
    return parts


PAGES: Mapping[str, Callable[[Results, Clients], list[Part]]] = {
    "uci": uci,
    "uci-adam": uci,
    "mortality": mortality,
    "heart": heart,
    "mnist-homogeneous": images.homogeneous,
    "mnist-early-stopping": images.early_stopping,
    "mnist-damping": images.damping,
    "mnist-inhomogeneous": images.inhomogeneous,
    "mnist-ablation": images.ablation,
    "digits": images.digits,
    "digits-damping": images.damping,
    "digits-early-stopping": images.early_stopping,
    "digits-steps": local_steps.page,
    "digits-order": order.page,
    **schedules.PAGES,
}
FIGURES: Mapping[str, Callable[[Experiment, Results], list[Drawing]]] = {
    "digits-steps": local_steps.figures,
    "digits-order": order.figures,
    "schedules-clients": growth.figures,
}
"""Experiments with figures of their own, instead of curves against communications."""


def _splits(clients: Clients) -> ReportTable:
    rows = []
    for problem, some in clients.items():
        sizes = np.array([client["rows"] for client in some])
        positive = np.array([client["positive"] for client in some])
        half = len(some) // 2
        ours = (sizes[0], positive[:half].mean(), sizes[-1], positive[half:].mean())
        paper = TABLE.get(problem, (0, np.nan, 0, np.nan))
        figures = [f"{ours[0]:.0f}", f"{ours[1]:.3f}", f"{ours[2]:.0f}", f"{ours[3]:.3f}"]
        printed = [f"{paper[0]}", f"{paper[1]:.3f}", f"{paper[2]}", f"{paper[3]:.3f}"]
        rows.append([problem, *(f"{a} ({b})" for a, b in zip(figures, printed, strict=True))])
    return ReportTable(["problem (the paper's in brackets)", "N small", "η small", "N large", "η large"], rows)


def _clients(clients: Clients) -> ReportTable:
    some = next(iter(clients.values()))
    return ReportTable(
        ["client", "rows", "proportion positive"],
        [[client["client"], f"{client['rows']}", f"{client['positive']:.3f}"] for client in some],
    )


def _reaches_global(results: Results, problem: str, tolerance: float) -> list[Part]:
    def ends_near(results: Results, problem: str, method: str) -> Statement:
        gap = results.final(problem, method) - results.final(problem, "global_vi")
        text = f"{problem}: {label(method)} ends within {tolerance} test NLL of global VI."
        found = Statement(text, bool(np.abs(gap).mean() <= tolerance), f"{spread(gap)} above it.")
        if results.has(problem, "pooled"):
            higher = results.final(problem, "pooled", "free_energy") > results.final(
                problem, "global_vi", "free_energy"
            )
            left = np.abs(results.final(problem, "global_vi") - results.final(problem, "pooled")).mean()
            if higher.all() and left > tolerance:
                lacks = f"Global VI itself is still {left:.4f} from its optimum, so it takes a longer run of it."
                return found._replace(holds=None, lacks=lacks)
        return found

    judged = (ends_near, _fewer)
    return [part for judge in judged for part in beside_global(judge, results, problem, PAPER_SCHEDULES)]


def _worse(results: Results, problem: str, method: str) -> Statement:
    gap = results.final(problem, method) - results.final(problem, "global_vi")
    text = f"{problem}: {label(method)} ends worse than global VI, by more than 0.01 and by more than 2 sd."
    return clearly(text, gap, 0.01, f"{spread(gap)} above it.")


def _fewer(results: Results, problem: str, method: str) -> Statement:
    ours, theirs = (median_reached_at(results, problem, name) for name in (method, "global_vi"))
    return Statement(
        f"{problem}: {label(method)} gets there with fewer communications than global VI.",
        ours < theirs,
        f"{count(ours)} against {count(theirs)}.",
    )


def _one_round(results: Results, problem: str, method: str) -> Statement:
    arrived = median_reached_at(results, problem, method)
    return Statement(
        f"{problem}: with clients alike, {label(method)} converges after a single round (10 communications).",
        bool(arrived <= 10),
        f"within {TOLERANCE} of global VI's final NLL for good from {count(arrived)} communications on.",
    )


def _harmless(results: Results, problem: str, method: str) -> Statement:
    gap = results.final(problem, method) - results.final(problem, "global_vi")
    return Statement(
        f"{problem}: {label(method)} converges to the same predictions as PVI (within {TOLERANCE} of global VI's NLL).",
        bool(np.abs(gap).mean() <= TOLERANCE),
        f"{spread(gap)} above it.",
    )


def _smoother(results: Results, method: str) -> Statement:
    """Compares the total of all rises of the NLL during a run."""
    ups = []
    for problem in ("logistic regression", "network"):
        values = results.curve(problem, method).values
        ups.append(float(np.mean(np.nansum(np.maximum(np.diff(values, axis=1), 0), axis=1))))
    return Statement(
        f"{label(method)} converges more smoothly for logistic regression than for the network.",
        ups[0] < ups[1],
        f"the NLL's rises on the way add up to {ups[0]:.3f} and {ups[1]:.3f} nats per row.",
    )
