"""Common parts of all reports: tables of final results and of efficiency, and judging of statements."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from partita_experiments.figure import label
from partita_experiments.report import Heading, Part, ReportTable, Statement, Subheading, Text
from partita_experiments.results import PVI, Results, columns

PAPER_SCHEDULES = ("sequential", "synchronous")
"""The schedules of PVI in the paper's experiments."""
TOLERANCE = 0.005
"""Tolerance for reaching global VI's final NLL, in nats per row."""
FLAT = 1e-4
"""The free energy of a run that has converged moves by less in its last tenth, in nats per row."""
LEAST = 3
"""The least number of seeds of which an sd is believed."""
UNREACHED = "It takes a larger budget, and no more seeds: not all that is compared has arrived."
"""What is lacking where runs have not arrived."""
MOST = 100
"""More seeds than these are as good as never."""


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


def beside_global(judge: Judge, results: Results, problem: str, methods: Sequence[str]) -> list[Part]:
    """The same where methods are measured against the end of global VI: none is judged unless that has converged."""
    found = [part for part in each(judge, results, problem, methods) if isinstance(part, Statement)]
    lacks = moving(results, problem, "global_vi") if found else ""
    return [part._replace(holds=None, lacks=lacks) if lacks else part for part in found]


def moving(results: Results, problem: str, run: str) -> str:
    """A sentence that says that a run had not converged by its own free energy; empty where it had.

    Its mean over the last tenth of the communications is compared with that over the tenth before; a difference within
    two standard errors of a sampled free energy counts as none.
    """
    moved = [_moved(*columns(cell, "communications", "free_energy")) for cell in results.of(problem, run)]
    most = max(np.abs(moved), default=0.0) / results.rows(problem)
    if "converged" in results.statuses(problem, run) or most <= FLAT:
        return ""
    return (
        f"{label(run)[0].upper()}{label(run)[1:]} had not converged: in the last tenth of its communications its free "
        f"energy moved by {most:.1g} nats per row, and {FLAT:g} are allowed. It takes a longer run, not more seeds."
    )


def _moved(x: Float[np.ndarray, " n"], free_energy: Float[np.ndarray, " n"]) -> float:
    """By how much a free energy moved from the last tenth but one to the last, 0 if by no more than its noise."""
    if len(x) < 2:
        return np.inf
    last, before = x > 0.9 * x[-1], (x > 0.8 * x[-1]) & (x <= 0.9 * x[-1])
    if not before.any():
        before = x == x[-2:][0]
    parts = [free_energy[last], free_energy[before]]
    moved = parts[0].mean() - parts[1].mean()
    variance = sum(part.var(ddof=1) / len(part) for part in parts if len(part) > 1)
    return float(moved) if abs(moved) > 2 * np.sqrt(variance) or not np.isfinite(moved) else 0.0


def rises(results: Results, problem: str, method: str) -> Statement:
    """Judges whether a run's NLL rises again after its minimum."""
    values = results.curve(problem, method).values
    rise = values[:, -1] - np.nanmin(values, axis=1)
    text = f"{problem}: {label(method)} ends above its own lowest NLL by more than 2 sd, and by more than {TOLERANCE}."
    return clearly(text, rise, TOLERANCE, f"ends {spread(rise)} above its lowest.")


def clearly(text: str, values: Float[np.ndarray, " seeds"], bound: float, seen: str) -> Statement:
    """A statement that holds if values are above a bound and above 2 sd, or says how many seeds it takes to judge."""
    holds = exceeds(values, bound)
    return Statement(text, holds, seen, needed(values, bound) if holds is None else "")


def exceeds(values: np.ndarray, bound: float) -> bool | None:
    """Whether the mean is above the bound and above 2 sd; None with fewer than three seeds."""
    if np.isposinf(values).any():
        return True
    if len(values) < LEAST or not np.isfinite(values).all():
        return None
    return bool(values.mean() > bound and values.mean() > 2 * values.std(ddof=1))


def higher(results: Results, problem: str, run: str, than: str) -> Statement:
    """Judges whether a run ends at a higher NLL than another."""
    gap = results.final(problem, run) - results.final(problem, than)
    text = f"{problem}: {label(run)} ends at a higher test NLL than {label(than)}, by more than 2 sd."
    return clearly(text, gap, 0.0, f"{spread(gap)} above it.")


def needed(values: Float[np.ndarray, " seeds"], bound: float) -> str:
    """How many seeds it takes to judge whether values exceed a bound, as a sentence.

    As many as put the mean two of its standard errors away from where the verdict changes, by the sd seen; at least
    three.
    """
    if not np.isfinite(values).all():
        return "A seed has no number here, so that no number of seeds would do before it is run again."
    have = len(values)
    if have == 1:
        return lacking(have)
    there = f"and there are {have}."
    sd = values.std(ddof=1)
    away = abs(values.mean() - max(bound, 2 * sd))
    seeds = max(LEAST, np.ceil((2 * sd / away) ** 2)) if away > 0 else np.inf
    return f"It takes {f'{seeds:.0f}' if seeds <= MOST else f'more than {MOST}'} seeds by the sd seen, {there}"


def lacking(seeds: int) -> str:
    """How many seeds it takes to judge what is random, as a sentence; nothing where there are as many."""
    return "" if seeds >= LEAST else f"It takes {LEAST} seeds, and there {'is' if seeds == 1 else 'are'} {seeds}."


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
