"""Common parts of all reports: tables of final results and of efficiency, and judging of statements."""

from collections.abc import Callable, Sequence

import numpy as np

from partita_experiments.figure import label
from partita_experiments.report import Heading, Part, ReportTable, Statement, Subheading, Text
from partita_experiments.results import PVI, Results

PAPER_SCHEDULES = ("sequential", "synchronous")
"""The schedules of PVI in the paper's experiments."""
TOLERANCE = 0.005
"""Tolerance for reaching global VI's final NLL, in nats per row."""


def common(results: Results) -> list[Part]:
    """Tables of each run's final results and efficiency."""
    parts: list[Part] = [
        Heading("Where each method ends, mean ± sd over the seeds"),
        Text(
            "Seeds choose where climbing begins and in which order clients are visited. A method whose clients solve "
            "exactly and are visited all at once forgets the former and has none of the latter: its sd is 0."
        ),
    ]
    for problem in results.problems:
        rows = [_final_row(results, problem, method) for method in results.runs if results.has(problem, method)]
        header = ["method", "test error", "test NLL", "communications", "seconds", "ended"]
        parts += [Subheading(problem), ReportTable(header, rows)]
    return [*parts, *efficiency(results)]


def _final_row(results: Results, problem: str, method: str) -> list[str]:
    cells = results.of(problem, method)
    return [
        label(method),
        spread(results.final(problem, method, "error")),
        spread(results.final(problem, method, "nll")),
        f"{np.mean([cell['rows'][-1]['communications'] for cell in cells]):.0f}",
        f"{results.seconds(problem, method):.1f}",
        ", ".join(results.statuses(problem, method)),
    ]


def efficiency(results: Results) -> list[Part]:
    """Communications, and simulated time, until global VI's final NLL is reached for good."""
    schedules = [method for method in PVI if method in results.runs]
    if not schedules or "global_vi" not in results.runs:
        return []
    rivals = [method for method in ("global_vi", "stochastic_global_vi") if method in results.runs]
    tables: dict[str, tuple[list[list[str]], list[str]]] = {"communications": ([], []), "clock": ([], [])}
    for problem in results.problems:
        for by, (rows, first) in tables.items():
            methods = [*schedules, *rivals] if by == "communications" else schedules
            reached = {method: median_reached_at(results, problem, method, by) for method in methods}
            slow = reached.get("global_vi")
            rows.append([problem, *(count(reached[method], slow if method in PVI else None) for method in methods)])
            best = min(schedules, key=lambda method: reached[method])
            first.append(f"{problem}: {label(best) if np.isfinite(reached[best]) else 'none'}")
    near = f"until the test NLL stays within {TOLERANCE} of where global VI ends"
    counted, timed = tables["communications"], tables["clock"]
    return [
        Heading(f"Communications {near}"),
        Text("Medians over the seeds; in brackets how many times fewer than global VI. ∞: not within the budget."),
        ReportTable(["problem", *map(label, [*schedules, *rivals])], counted[0]),
        Text(f"First of the schedules: {'; '.join(counted[1])}."),
        Heading(f"Simulated time {near}"),
        Text(
            "On a clock on which a visit takes as long as the client has rows, 1 for the mean, and longer at slow "
            "clients. Global VI's visits are single gradients and not solutions, so it has no place here."
        ),
        ReportTable(["problem", *map(label, schedules)], timed[0]),
        Text(f"First of the schedules: {'; '.join(timed[1])}."),
    ]


Judge = Callable[[Results, str, str], Statement]


def each(judge: Judge, results: Results, problem: str, methods: Sequence[str]) -> list[Part]:
    """A statement about each of the methods that was run beside global VI."""
    return [judge(results, problem, method) for method in methods if results.has(problem, method, "global_vi")]


def rises(results: Results, problem: str, method: str) -> Statement:
    """Judges whether a run's NLL rises again after its minimum."""
    values = results.curve(problem, method).values
    rise = values[:, -1] - np.nanmin(values, axis=1)
    return Statement(
        f"{problem}: {label(method)} ends above its own lowest NLL by more than 2 sd, and by more than {TOLERANCE}.",
        exceeds(rise, TOLERANCE),
        f"ends {spread(rise)} above its lowest.",
    )


def exceeds(values: np.ndarray, bound: float) -> bool | None:
    """Whether the mean is above the bound and above 2 sd; None with fewer than three seeds."""
    if np.isposinf(values).any():
        return True
    if len(values) < 3 or not np.isfinite(values).all():
        return None
    return bool(values.mean() > bound and values.mean() > 2 * values.std(ddof=1))


def higher(results: Results, problem: str, run: str, than: str) -> Statement:
    """Judges whether a run ends at a higher NLL than another."""
    gap = results.final(problem, run) - results.final(problem, than)
    return Statement(
        f"{problem}: {label(run)} ends at a higher test NLL than {label(than)}, by more than 2 sd.",
        exceeds(gap, 0.0),
        f"{spread(gap)} above it.",
    )


def median_reached_at(
    results: Results,
    problem: str,
    method: str,
    by: str = "communications",
    metric: str = "nll",
    near: float = TOLERANCE,
) -> float:
    """When a metric stays within `near` of global VI's final value: the median over the seeds."""
    target = results.final(problem, "global_vi", metric).mean()
    return float(np.median(results.reach(problem, method, target, near, by, metric)))


def spread(values: np.ndarray) -> str:
    """Mean ± sd over the seeds, or the value of a lone one; — where a seed was not measured."""
    if np.isnan(values).any():
        return "—"
    if not np.isfinite(values).all():
        return "∞"
    return f"{values[0]:.4f}" if len(values) == 1 else f"{values.mean():.4f} ± {values.std(ddof=1):.4f}"


def count(value: float, slow: float | None = None) -> str:
    """A number of communications, with how many times fewer than another in brackets; ∞ for never."""
    if not np.isfinite(value):
        return "∞"
    return f"{value:.0f}" if slow is None or not np.isfinite(slow) else f"{value:.0f} ({slow / value:.0f}×)"
