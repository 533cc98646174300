"""What each experiment says: its tables, and the paper's statements beside what was seen."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.experiments.figure import label
from partita.experiments.report import Grid, Heading, Part, Statement, Text
from partita.experiments.results import PVI, Results

NEAR = 0.005
"""How near to global VI's final NLL counts as having reached it, in nats per row."""
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

Clients = Mapping[str, Sequence[Mapping[str, Any]]]
"""For each problem its clients' names, rows and proportions of positive labels."""


def uci(results: Results, clients: Clients) -> list[Part]:
    """`sec:experiments:uci`."""
    parts: list[Part] = [Heading("The clients (`tab:uci_splits`)"), _splits(clients)]
    parts += _common(results)
    parts += [Heading("The paper's statements")]
    for problem in results.problems:
        tolerance = 0.01 if problem.startswith("credit") else 0.002
        parts += [_as_global(results, problem, method, tolerance) for method in ("sequential", "synchronous")]
        parts += [_fewer(results, problem, method) for method in ("sequential", "synchronous")]
        if problem.endswith("B"):
            parts += [_worse(results, problem, method) for method in ("bcm_same", "bcm_split", "vcl")]
        if problem.endswith("A"):
            parts += [_one_round(results, problem, method) for method in ("sequential", "synchronous")]
        parts += [_rises(results, problem, expected=problem.startswith("credit"))]
    return parts


def mortality(results: Results, clients: Clients) -> list[Part]:
    """`sec:experiments:mp`."""
    parts: list[Part] = [Heading("The clients (in the form of `tab:mimic3_splits`)"), _clients(clients)]
    parts += _common(results)
    parts += [Heading("The paper's statements")]
    for problem in results.problems:
        parts += [_as_global(results, problem, method, 0.01) for method in ("sequential", "synchronous")]
        parts += [_fewer(results, problem, method) for method in ("sequential", "synchronous")]
    if {"logistic regression", "network"} <= set(results.problems):
        parts += [_smoother(results, method) for method in ("sequential", "synchronous")]
    return parts


def heart(results: Results, clients: Clients) -> list[Part]:
    """The four hospitals, beside FLamby's published figures."""
    parts: list[Part] = [Heading("The hospitals"), _clients(clients), *_common(results)]
    for problem in results.problems:
        rows = [
            [label(method), f"{1 - results.final(problem, method, 'error').mean():.3f}"] for method in results.methods
        ]
        rows += [[name, f"{accuracy:.3f}"] for name, accuracy in FLAMBY.items()]
        parts += [Heading("Accuracy on the pooled test rows"), Grid(["method", "accuracy"], rows)]
        parts += [Heading("Statements")]
        parts += [_as_global(results, problem, method, 0.01) for method in ("sequential", "synchronous")]
        parts += [_fewer(results, problem, method) for method in ("sequential", "synchronous")]
    return parts


PAGES: Mapping[str, Callable[[Results, Clients], list[Part]]] = {"uci": uci, "mortality": mortality, "heart": heart}


def _common(results: Results) -> list[Part]:
    parts: list[Part] = [Heading("Where each method ends, mean ± sd over the seeds")]
    for problem in results.problems:
        rows = [_ending(results, problem, method) for method in results.methods]
        header = ["method", "test error", "test NLL", "communications", "seconds", "ended"]
        parts += [Text(f"**{problem}**"), Grid(header, rows)]
    return [*parts, *_efficiency(results)]


def _ending(results: Results, problem: str, method: str) -> list[str]:
    cells = results.of(problem, method)
    return [
        label(method),
        _spread(results.final(problem, method, "error")),
        _spread(results.final(problem, method, "nll")),
        f"{np.mean([cell['rows'][-1]['communications'] for cell in cells]):.0f}",
        f"{results.seconds(problem, method):.1f}",
        ", ".join(sorted({status for cell in cells for status in cell["statuses"]})),
    ]


def _efficiency(results: Results) -> list[Part]:
    """Communications, and simulated time, until global VI's final NLL is reached for good."""
    methods = [method for method in (*PVI, "global_vi", "stochastic_global_vi") if method in results.methods]
    parts: list[Part] = []
    for by, unit in (("communications", "communications"), ("clock", "units of simulated time")):
        rows, first = [], []
        for problem in results.problems:
            if not results.has(problem, "global_vi"):
                continue
            level = results.final(problem, "global_vi").mean() + NEAR
            reached = {method: float(np.median(results.reach(problem, method, level, by))) for method in methods}
            slow = reached["global_vi"]
            rows.append(
                [problem]
                + [_reached(reached[method], slow / reached[method] if method in PVI else None) for method in methods]
            )
            among = {method: reached[method] for method in PVI if method in reached}
            best = min(among, key=lambda method: among[method])
            first.append(f"{problem}: {label(best)}" if np.isfinite(among[best]) else f"{problem}: none")
        if rows:
            parts += [
                Heading(f"{unit.capitalize()} until global VI's final NLL + {NEAR} is reached for good"),
                Text(
                    "Medians over the seeds; in brackets how many times fewer than global VI. ∞: not within the budget."
                ),
                Grid(["problem", *map(label, methods)], rows),
                Text(f"First of the three schedules in {unit}: {'; '.join(first)}."),
            ]
    return parts


def _splits(clients: Clients) -> Grid:
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
    return Grid(["problem (the paper's in brackets)", "N small", "η small", "N large", "η large"], rows)


def _clients(clients: Clients) -> Grid:
    some = next(iter(clients.values()))
    return Grid(
        ["client", "rows", "proportion positive"],
        [[client["client"], f"{client['rows']}", f"{client['positive']:.3f}"] for client in some],
    )


def _as_global(results: Results, problem: str, method: str, tolerance: float) -> Statement:
    gap = results.final(problem, method) - results.final(problem, "global_vi")
    return Statement(
        f"{problem}: {label(method)} ends within {tolerance} test NLL of global VI.",
        bool(np.abs(gap.mean()) <= tolerance),
        f"{_spread(gap)} above it.",
    )


def _worse(results: Results, problem: str, method: str) -> Statement:
    gap = results.final(problem, method) - results.final(problem, "global_vi")
    return Statement(
        f"{problem}: {label(method)} ends worse than global VI, by more than 0.01 and by more than 2 sd.",
        bool(gap.mean() > 0.01 and gap.mean() > 2 * gap.std()),
        f"{_spread(gap)} above it.",
    )


def _fewer(results: Results, problem: str, method: str) -> Statement:
    level = results.final(problem, "global_vi").mean() + NEAR
    ours, theirs = (float(np.median(results.reach(problem, name, level))) for name in (method, "global_vi"))
    return Statement(
        f"{problem}: {label(method)} gets there with fewer communications than global VI.",
        ours < theirs,
        f"{_reached(ours)} against {_reached(theirs)}.",
    )


def _one_round(results: Results, problem: str, method: str) -> Statement:
    level = results.final(problem, "global_vi").mean() + NEAR
    reached = np.median(results.reach(problem, method, level))
    return Statement(
        f"{problem}: with clients alike, {label(method)} converges after a single round (10 communications).",
        bool(reached <= 10),
        f"within {NEAR} of global VI's final NLL for good from {_reached(float(reached))} communications on.",
    )


def _rises(results: Results, problem: str, expected: bool) -> Statement:
    values = results.curve(problem, "streaming_vb").values
    rise = values[:, -1] - np.nanmin(values, axis=1)
    # without spread, any rise is more than twice its sd: ask for one that could be seen
    rises = bool(rise.mean() > 2 * rise.std() and rise.mean() > 1e-4)
    what = (
        "ends above its own lowest NLL by more than 2 sd"
        if expected
        else "does not degrade (over-counting is harmless)"
    )
    return Statement(f"{problem}: streaming VB {what}.", rises == expected, f"ends {_spread(rise)} above its lowest.")


def _smoother(results: Results, method: str) -> Statement:
    """Compares how much NLL goes up again on the way down, in all."""
    ups = []
    for problem in ("logistic regression", "network"):
        values = results.curve(problem, method).values
        ups.append(float(np.mean(np.nansum(np.maximum(np.diff(values, axis=1), 0), axis=1))))
    return Statement(
        f"{label(method)} converges more smoothly for logistic regression than for the network.",
        ups[0] < ups[1],
        f"the NLL's rises on the way add up to {ups[0]:.3f} and {ups[1]:.3f} nats per row.",
    )


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.4f} ± {values.std():.4f}"


def _reached(value: float, ratio: float | None = None) -> str:
    if not np.isfinite(value):
        return "∞"
    return f"{value:.0f}" if ratio is None else f"{value:.0f} ({ratio:.0f}×)" if np.isfinite(ratio) else f"{value:.0f}"
