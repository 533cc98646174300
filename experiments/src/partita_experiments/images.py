"""Reports of the experiments on images (`sec:experiments:fmnist`, `sec:appen:experiments:fmnist`)."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from partita_experiments.early_stopping import early_and_global
from partita_experiments.figure import label
from partita_experiments.judge import (
    PAPER_SCHEDULES,
    beside_global,
    clearly,
    common,
    count,
    each,
    higher,
    median_reached_at,
    rises,
    spread,
)
from partita_experiments.report import Heading, Part, ReportTable, Statement, Text
from partita_experiments.results import Results, columns
from partita_experiments.store import Clients

ERROR_TOLERANCE = 0.003
"""Tolerance for reaching global VI's final test error: 0.3 percentage points."""
DIVERGENCE_DAMPING = 0.25
"""The smallest damping ρ at which synchronous PVI diverges in the paper."""
DIVERGED_STATUSES = {"diverged", "improper"}
FEDAVG = {"FedAvg, a tenth of the clients a round": 6640, "FedAvg, all clients": 38000}
"""Communications to 97% on this split with two hidden layers of 200 units (McMahan et al. 2017): rounds × clients."""


def homogeneous(results: Results, clients: Clients) -> list[Part]:
    """`fig:fmnist_homo_pvi`, `fig:fmnist_homo_pvi_steps`."""
    parts: list[Part] = [*client_summary(clients), *common(results), Heading("The paper's statements")]
    for problem in results.problems:
        parts += beside_global(_same_error, results, problem, PAPER_SCHEDULES)
        parts += beside_global(_tenth_of_communications, results, problem, PAPER_SCHEDULES)
        poorer = functools.partial(_more_error, than="global_vi", points=2)
        parts += beside_global(poorer, results, problem, ("bcm_same", "bcm_split"))
        parts += each(rises, results, problem, ("streaming_vb",))
        if results.has(problem, "vcl", "sequential"):
            parts.append(higher(results, problem, "vcl", "sequential"))
        parts += each(_pruning, results, problem, ("global_vi", *PAPER_SCHEDULES))
    return parts


def early_stopping(results: Results, clients: Clients) -> list[Part]:
    """`fig:fmnist_homo_es_pvi`."""
    parts: list[Part] = [*client_summary(clients), *common(results), Heading("The paper's statements")]
    for problem, run in itertools.product(results.problems, results.runs):
        early = f"{run}, early stopping"
        if results.has(problem, run, early):
            parts.append(higher(results, problem, run, early))
    for problem in results.problems:
        parts += early_and_global(results, problem)
    return parts


def damping(results: Results, clients: Clients) -> list[Part]:
    """`fig:fmnist_homo_sequential`, `fig:fmnist_homo_synchronous`."""
    parts: list[Part] = [*client_summary(clients)]
    for problem in results.problems:
        damped = {method: _by_damping(results, problem, method) for method in PAPER_SCHEDULES}
        rows = [
            [
                label(method),
                f"{rho:g}",
                spread(results.final(problem, run, "error")),
                spread(results.final(problem, run)),
                f"{results.final(problem, run, 'free_energy').mean():,.0f}",
                ", ".join(results.statuses(problem, run)),
            ]
            for method, runs in damped.items()
            for rho, run in runs.items()
        ]
        parts += [
            Heading(f"{problem}: where each damping ends, mean ± sd over the seeds"),
            ReportTable(["method", "ρ", "test error", "test NLL", "free energy", "ended"], rows),
            *_stable(results, problem, damped["synchronous"]),
            Heading(f"{problem}: the paper's statements"),
        ]
        if at_most_two_labels(clients, problem):
            parts += _milder(results, problem, damped["sequential"])
        mild = {rho: run for rho, run in damped["synchronous"].items() if rho < DIVERGENCE_DAMPING}
        parts += _faster(results, problem, "sequential", damped["sequential"])
        parts += _faster(results, problem, "synchronous", mild)
        parts += [
            _diverges(results, problem, rho, run)
            for rho, run in damped["synchronous"].items()
            if rho >= DIVERGENCE_DAMPING
        ]
    return parts


def inhomogeneous(results: Results, clients: Clients) -> list[Part]:
    """`fig:fmnist_inhomo_pvi`, `fig:fmnist_inhomo_pvi_sgvi`."""
    parts: list[Part] = [*client_summary(clients), *common(results)]
    for problem in results.problems:
        runs = [run for run in results.runs if results.has(problem, run)]
        arrived = {label(run): float(np.median(results.first(problem, run, 0.03))) for run in runs}
        rows = [[name, count(number)] for name, number in (arrived | FEDAVG).items()]
        parts += [
            Heading("Communications until 97% of the test rows are right for the first time"),
            Text(
                "Medians over the seeds; ∞: not within the budget. FedAvg's are published for this split and a network "
                "with one hidden layer more (McMahan et al. 2017)."
            ),
            ReportTable(["method", "communications"], rows),
            Heading("On the way, mean ± sd over the seeds"),
            Text("A run that has ended keeps its last value."),
            _intermediate_results(results, problem, runs, (1000, 3000)),
            Heading("The paper's statements"),
        ]
        parts += beside_global(functools.partial(_more_error, than="global_vi"), results, problem, PAPER_SCHEDULES)
        parts += each(functools.partial(_sooner, than="global_vi"), results, problem, PAPER_SCHEDULES)
        if results.has(problem, "stochastic_global_vi", "sequential"):
            parts.append(_sooner(results, problem, "stochastic_global_vi", than="sequential"))
    return parts


def ablation(results: Results, clients: Clients) -> list[Part]:
    """What each setting does, best first."""
    parts: list[Part] = [*client_summary(clients)]
    for problem in results.problems:
        runs = [run for run in results.runs if results.has(problem, run)]
        best_first = sorted(runs, key=lambda run: np.nan_to_num(results.final(problem, run).mean(), nan=np.inf))
        parts += [Heading(f"{problem}: best first, mean ± sd over the seeds")]
        parts += [_intermediate_results(results, problem, best_first, (500, 1000), end=True)]
    return parts


def digits(results: Results, clients: Clients) -> list[Part]:
    """Whether the settings found on MNIST need no change."""
    parts: list[Part] = [*client_summary(clients), *common(results)]
    for problem in results.problems:
        runs = [run for run in results.runs if results.has(problem, run)]
        parts += [
            Heading("On the way, mean ± sd over the seeds"),
            _intermediate_results(results, problem, runs, (200, 1000)),
        ]
        parts += [Heading("Statement"), *beside_global(_no_more_error, results, problem, ("incremental_vi",))]
    return parts


def at_most_two_labels(clients: Clients, problem: str) -> bool:
    """Whether nobody has more than two labels, as on the paper's inhomogeneous split."""
    return max((client["labels"] for client in clients.get(problem, ())), default=np.inf) <= 2


def client_summary(clients: Clients) -> list[Part]:
    """A table with the number of clients and the ranges of their rows and labels."""
    rows = [
        [problem, f"{len(some)}", *(_range([client[name] for client in some]) for name in ("rows", "labels"))]
        for problem, some in clients.items()
    ]
    return [Heading("The clients"), ReportTable(["problem", "clients", "rows of each", "labels of each"], rows)]


def _range(values: Sequence[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _intermediate_results(
    results: Results, problem: str, runs: Sequence[str], points: Sequence[int], end: bool = False
) -> ReportTable:
    """Error and NLL of each run after some numbers of communications, and at the end."""
    header, rows = ["method"], [[label(run)] for run in runs]
    for point in points:
        header += [f"error at {point:,}", f"NLL at {point:,}"]
        for row, run in zip(rows, runs, strict=True):
            row += [spread(results.at(problem, run, point, metric)) for metric in ("error", "nll")]
    if end:
        header += ["error at the end", "NLL at the end"]
        for row, run in zip(rows, runs, strict=True):
            row += [spread(results.final(problem, run, metric)) for metric in ("error", "nll")]
    return ReportTable(header, rows)


def _same_error(results: Results, problem: str, run: str) -> Statement:
    gap = results.final(problem, run, "error") - results.final(problem, "global_vi", "error")
    return Statement(
        f"{problem}: {label(run)} ends within 0.3 percentage points of global VI's test error.",
        bool(np.abs(gap).mean() <= ERROR_TOLERANCE),
        f"{spread(100 * gap)} points above it.",
    )


def _no_more_error(results: Results, problem: str, run: str) -> Statement:
    gap = results.final(problem, run, "error") - results.final(problem, "global_vi", "error")
    return Statement(
        f"{problem}: {label(run)} ends with at most 0.3 percentage points more test error than global VI.",
        bool(gap.mean() <= ERROR_TOLERANCE),
        f"{spread(100 * gap)} points above it.",
    )


def _tenth_of_communications(results: Results, problem: str, run: str) -> Statement:
    ours, theirs = (
        median_reached_at(results, problem, name, metric="error", near=ERROR_TOLERANCE) for name in (run, "global_vi")
    )
    return Statement(
        f"{problem}: {label(run)} gets there for good with at most a tenth of global VI's communications.",
        bool(np.isfinite(ours) and ours <= theirs / 10),
        f"{count(ours)} against {count(theirs)}.",
    )


def _more_error(results: Results, problem: str, run: str, than: str, points: float = 0) -> Statement:
    gap = results.final(problem, run, "error") - results.final(problem, than, "error")
    margin = f"more than {points:g} percentage points and by " if points else ""
    text = f"{problem}: {label(run)} ends with more test error than {label(than)}, by {margin}more than 2 sd."
    return clearly(text, gap, points / 100, f"{spread(100 * gap)} points above it.")


def _sooner(results: Results, problem: str, run: str, than: str) -> Statement:
    gap = results.at(problem, than, 1000) - results.at(problem, run, 1000)
    lower = f"is at a lower test NLL than {label(than)}, by more than 2 sd."
    text = f"{problem}: after 1,000 communications {label(run)} {lower}"
    return clearly(text, gap, 0.0, f"{spread(gap)} below it.")


def _pruning(results: Results, problem: str, run: str) -> Statement:
    """Correlates pruned parameters and NLL after each seed's lowest NLL."""
    found = []
    for cell in results.of(problem, run):
        pruned, nll = columns(cell, "pruned", "nll")
        best = int(np.argmin(nll))
        if len(nll) - best > 2 and np.ptp(pruned[best:]) > 0 and np.ptp(nll[best:]) > 0:
            found.append(spearmanr(pruned[best:], nll[best:]).statistic)
    signs = np.sign(found)
    return Statement(
        f"{problem}: after {label(run)}'s lowest test NLL, more pruned parameters go with a higher one.",
        bool((signs > 0).all()) if found else None,
        f"rank correlation {spread(np.array(found))}." if found else "it ends at its lowest NLL, or prunes nothing.",
        "" if found else "It takes one seed whose NLL rises again while parameters are pruned, and none does.",
    )


def _by_damping(results: Results, problem: str, method: str) -> dict[float, str]:
    """The runs of a method with a damping of their own, in its order."""
    runs = [run for run in results.runs if results.methods[run] == method and results.has(problem, run)]
    damped = {results.setting(run, "damping"): run for run in runs if results.setting(run, "damping") is not None}
    return dict(sorted(damped.items()))


def _faster(results: Results, problem: str, method: str, runs: dict[float, str]) -> list[Part]:
    """Compares when runs first reach the highest of their final errors; diverged runs are excluded."""
    stayed = {rho: run for rho, run in runs.items() if not DIVERGED_STATUSES & set(results.statuses(problem, run))}
    if len(stayed) < 2:
        return []
    level = max(results.final(problem, run, "error").mean() for run in stayed.values())
    arrived = [float(np.median(results.first(problem, run, level))) for run in stayed.values()]
    ordered = all(later <= earlier for earlier, later in itertools.pairwise(arrived))
    seen = ", ".join(f"{count(number)} with ρ = {rho:g}" for rho, number in zip(stayed, arrived, strict=True))
    limit = f" where ρ < {DIVERGENCE_DAMPING}" if method == "synchronous" else ""
    return [
        Statement(
            f"{problem}: less damping (a larger ρ) makes {label(method)} faster{limit}.",
            ordered and arrived[-1] < arrived[0],
            f"communications until the test error first is {level:.4f}: {seen}.",
        )
    ]


def _milder(results: Results, problem: str, runs: dict[float, str]) -> list[Part]:
    """Whether ρ = 0.3 is sooner than ρ = 1 at the higher of their final NLL."""
    if not {0.3, 1.0} <= runs.keys():
        return []
    two = [runs[0.3], runs[1.0]]
    level = max(results.final(problem, run).mean() for run in two)
    mild, whole = (float(np.median(results.first(problem, run, level, "nll"))) for run in two)
    ends = [spread(results.final(problem, run)) for run in two]
    return [
        Statement(
            f"{problem}: sequential PVI is faster with ρ = 0.3 than undamped.",
            bool(mild < whole),
            f"communications until the test NLL first is {level:.4f}: {count(mild)} and {count(whole)}; "
            f"they end at {ends[0]} and {ends[1]}.",
        )
    ]


def _stable(results: Results, problem: str, runs: dict[float, str]) -> list[Part]:
    """Names the largest damping of synchronous PVI with which every seed goes well."""
    stable = [rho for rho, run in runs.items() if _stays(results, problem, run)]
    largest = f"{max(stable):g}" if stable else "none of these"
    said = (
        "The largest ρ with which no seed of synchronous PVI diverged, became improper or ended at a lower free energy "
        f"than after its first round: {largest}."
    )
    return [Text(said)] if runs else []


def _stays(results: Results, problem: str, run: str) -> bool:
    """Whether every seed of a run goes well: its free energy ends higher than it was at the first evaluation."""
    rises = [np.diff(columns(cell, "free_energy")[0][[0, -1]])[0] for cell in results.of(problem, run)]
    return not DIVERGED_STATUSES & set(results.statuses(problem, run)) and bool(np.all(np.array(rises) >= 0))


def _diverges(results: Results, problem: str, rho: float, run: str) -> Statement:
    statuses = results.statuses(problem, run)
    return Statement(
        f"{problem}: synchronous PVI with ρ = {rho:g} diverges, as it does in the paper from {DIVERGENCE_DAMPING} on.",
        set(statuses) <= DIVERGED_STATUSES,
        f"ended {', '.join(statuses)}, with a test error of {spread(results.final(problem, run, 'error'))}"
        f"{'' if _stays(results, problem, run) else ' and a lower free energy than after the first round'}.",
    )
