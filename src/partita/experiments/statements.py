"""What each experiment says: its tables, and the paper's statements beside what was seen."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.experiments.figure import label
from partita.experiments.report import Grid, Heading, Part, Statement, Subheading, Text
from partita.experiments.results import PVI, Results

PAPERS = ("sequential", "synchronous")
"""The schedules of PVI in the paper's experiments."""
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
    parts: list[Part] = [Heading("The clients (`tab:uci_splits`)"), _splits(clients), *_common(results)]
    parts += [Heading("The paper's statements")]
    for problem in results.problems:
        parts += _reaches_global(results, problem, 0.01 if problem.startswith("credit") else 0.002)
        if problem.endswith("A"):
            parts += _each(_one_round, results, problem, PAPERS)
        if problem.endswith("B"):
            parts += _each(_worse, results, problem, ("bcm_same", "bcm_split", "vcl"))
        parts += _each(_rises if problem.startswith("credit") else _harmless, results, problem, ("streaming_vb",))
    return parts


def mortality(results: Results, clients: Clients) -> list[Part]:
    """`sec:experiments:mp`."""
    parts: list[Part] = [Heading("The clients (in the form of `tab:mimic3_splits`)"), _clients(clients)]
    parts += [*_common(results), Heading("The paper's statements")]
    for problem in results.problems:
        parts += _reaches_global(results, problem, 0.01)
    if {"logistic regression", "network"} <= set(results.problems):
        parts += [_smoother(results, method) for method in PAPERS if method in results.methods]
    return parts


def heart(results: Results, clients: Clients) -> list[Part]:
    """The four hospitals, beside FLamby's published figures."""
    parts: list[Part] = [Heading("The hospitals"), _clients(clients), *_common(results)]
    for problem in results.problems:
        errors = {method: results.final(problem, method, "error").mean() for method in results.methods}
        rows = [[label(method), f"{1 - error:.3f}"] for method, error in errors.items()]
        rows += [[name, f"{accuracy:.3f}"] for name, accuracy in FLAMBY.items()]
        parts += [Heading("Accuracy on the pooled test rows"), Grid(["method", "accuracy"], rows)]
        parts += [Heading("Statements"), *_reaches_global(results, problem, 0.01)]
    return parts


PAGES: Mapping[str, Callable[[Results, Clients], list[Part]]] = {"uci": uci, "mortality": mortality, "heart": heart}


def _common(results: Results) -> list[Part]:
    parts: list[Part] = [
        Heading("Where each method ends, mean ± sd over the seeds"),
        Text(
            "Seeds choose where climbing begins and in which order clients are visited. A method whose clients solve "
            "exactly and are visited all at once forgets the former and has none of the latter: its sd is 0."
        ),
    ]
    for problem in results.problems:
        rows = [_ending(results, problem, method) for method in results.methods]
        header = ["method", "test error", "test NLL", "communications", "seconds", "ended"]
        parts += [Subheading(problem), Grid(header, rows)]
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
    schedules = [method for method in PVI if method in results.methods]
    if not schedules or "global_vi" not in results.methods:
        return []
    rivals = [method for method in ("global_vi", "stochastic_global_vi") if method in results.methods]
    tables: dict[str, tuple[list[list[str]], list[str]]] = {"communications": ([], []), "clock": ([], [])}
    for problem in results.problems:
        for by, (rows, first) in tables.items():
            methods = [*schedules, *rivals] if by == "communications" else schedules
            reached = {method: _median(results, problem, method, by) for method in methods}
            slow = reached.get("global_vi")
            rows.append([problem, *(_reached(reached[method], slow if method in PVI else None) for method in methods)])
            best = min(schedules, key=lambda method: reached[method])
            first.append(f"{problem}: {label(best) if np.isfinite(reached[best]) else 'none'}")
    near = f"until the test NLL stays within {NEAR} of where global VI ends"
    counted, timed = tables["communications"], tables["clock"]
    return [
        Heading(f"Communications {near}"),
        Text("Medians over the seeds; in brackets how many times fewer than global VI. ∞: not within the budget."),
        Grid(["problem", *map(label, [*schedules, *rivals])], counted[0]),
        Text(f"First of the schedules: {'; '.join(counted[1])}."),
        Heading(f"Simulated time {near}"),
        Text(
            "On a clock on which a visit takes as long as the client has rows, 1 for the mean, and longer at slow "
            "clients. Global VI's visits are single gradients and not solutions, so it has no place here."
        ),
        Grid(["problem", *map(label, schedules)], timed[0]),
        Text(f"First of the schedules: {'; '.join(timed[1])}."),
    ]


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


Judge = Callable[[Results, str, str], Statement]


def _each(judge: Judge, results: Results, problem: str, methods: Sequence[str]) -> list[Part]:
    """A statement about each of the methods that was run beside global VI."""
    return [judge(results, problem, method) for method in methods if results.has(problem, method, "global_vi")]


def _reaches_global(results: Results, problem: str, tolerance: float) -> list[Part]:
    def ends_near(results: Results, problem: str, method: str) -> Statement:
        gap = results.final(problem, method) - results.final(problem, "global_vi")
        holds: bool | None = bool(np.abs(gap).mean() <= tolerance)
        seen = f"{_spread(gap)} above it."
        if results.has(problem, "pooled"):
            higher = results.final(problem, "pooled", "free_energy") > results.final(
                problem, "global_vi", "free_energy"
            )
            left = np.abs(results.final(problem, "global_vi") - results.final(problem, "pooled")).mean()
            if higher.all() and left > tolerance:
                holds, seen = None, f"{seen} Global VI itself is still {left:.4f} from its optimum."
        return Statement(f"{problem}: {label(method)} ends within {tolerance} test NLL of global VI.", holds, seen)

    return [*_each(ends_near, results, problem, PAPERS), *_each(_fewer, results, problem, PAPERS)]


def _worse(results: Results, problem: str, method: str) -> Statement:
    gap = results.final(problem, method) - results.final(problem, "global_vi")
    return Statement(
        f"{problem}: {label(method)} ends worse than global VI, by more than 0.01 and by more than 2 sd.",
        _exceeds(gap, 0.01),
        f"{_spread(gap)} above it.",
    )


def _fewer(results: Results, problem: str, method: str) -> Statement:
    ours, theirs = (_median(results, problem, name) for name in (method, "global_vi"))
    return Statement(
        f"{problem}: {label(method)} gets there with fewer communications than global VI.",
        ours < theirs,
        f"{_reached(ours)} against {_reached(theirs)}.",
    )


def _one_round(results: Results, problem: str, method: str) -> Statement:
    reached = _median(results, problem, method)
    return Statement(
        f"{problem}: with clients alike, {label(method)} converges after a single round (10 communications).",
        bool(reached <= 10),
        f"within {NEAR} of global VI's final NLL for good from {_reached(reached)} communications on.",
    )


def _rises(results: Results, problem: str, method: str) -> Statement:
    values = results.curve(problem, method).values
    rise = values[:, -1] - np.nanmin(values, axis=1)
    return Statement(
        f"{problem}: {label(method)} ends above its own lowest NLL by more than 2 sd, and by more than {NEAR}.",
        _exceeds(rise, NEAR),
        f"ends {_spread(rise)} above its lowest.",
    )


def _harmless(results: Results, problem: str, method: str) -> Statement:
    gap = results.final(problem, method) - results.final(problem, "global_vi")
    return Statement(
        f"{problem}: {label(method)} converges to the same predictions as PVI (within {NEAR} of global VI's NLL).",
        bool(np.abs(gap).mean() <= NEAR),
        f"{_spread(gap)} above it.",
    )


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


def _exceeds(values: np.ndarray, bound: float) -> bool | None:
    """Whether the mean is above the bound and above 2 sd; with fewer than three seeds nobody can tell."""
    if np.isposinf(values).any():
        return True
    if len(values) < 3 or not np.isfinite(values).all():
        return None
    return bool(values.mean() > bound and values.mean() > 2 * values.std(ddof=1))


def _median(results: Results, problem: str, method: str, by: str = "communications") -> float:
    target = results.final(problem, "global_vi").mean()
    return float(np.median(results.reach(problem, method, target, NEAR, by)))


def _spread(values: np.ndarray) -> str:
    if not np.isfinite(values).all():
        return "∞"
    return f"{values.mean():.4f} ± {values.std(ddof=min(1, len(values) - 1)):.4f}"


def _reached(value: float, slow: float | None = None) -> str:
    if not np.isfinite(value):
        return "∞"
    return f"{value:.0f}" if slow is None or not np.isfinite(slow) else f"{value:.0f} ({slow / value:.0f}×)"
