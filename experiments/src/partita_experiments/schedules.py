"""Reports of the experiments on schedules (`sec:pvi:pvi_flavours`)."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita_experiments.figure import label
from partita_experiments.growth import AXES, NEAR, kind_of
from partita_experiments.judge import LEAST, TOLERANCE, UNREACHED, clearly, count, lacking, spread
from partita_experiments.report import Heading, Part, ReportTable, Statement, Text
from partita_experiments.results import Results, columns
from partita_experiments.store import Clients

REDUNDANT = 0.1
"""An answer is redundant that changes the free energy by less than this part of its fair share of what is left.

With M clients the fair share is a M-th. Where clients agree, an answer that is taken in with damping ρ brings 2ρ/M of
what is left, so that a tenth of a share is half of what one brings at ρ = 0.1, and a tenth at ρ = 1/2.
"""
FASTER = 1.1
"""One run is faster than another only if it needs fewer communications by more than this factor."""
SIMILAR = 2.0
"""Times are similar if neither is more than this many times the other."""
FALL = 1e-3
"""How many nats the free energy falls between two evaluations at least for a run to count as not stable."""


class Level(NamedTuple):
    """What counts as having arrived."""

    words: str
    metric: str
    within: float

    def target(self, results: Results, problem: str) -> float:
        """The metric where the free energy is the highest that was found, which is global VI's."""
        ends = [columns(cell, "gap", self.metric) for cell in results.cells if cell["problem"] == problem]
        gap, values = (np.concatenate([end[place] for end in ends]) for place in range(2))
        return float(values[np.argmin(np.where(np.isfinite(gap), gap, np.inf))])

    def reached(self, results: Results, problem: str, run: str, by: str = "communications") -> np.ndarray:
        """When each seed has arrived for good; infinite where it has not."""
        return results.reach(problem, run, self.target(results, problem), self.within, by, self.metric)

    def median(self, results: Results, problem: str, run: str, by: str = "communications") -> float:
        """The median over the seeds."""
        return float(np.median(self.reached(results, problem, run, by)))


FREE_ENERGY = Level(f"within {NEAR:g} nat of global VI's free energy", "gap", NEAR)
PREDICTIONS = Level(f"within {TOLERANCE} of global VI's test NLL", "nll", TOLERANCE)
LEVELS = (FREE_ENERGY, PREDICTIONS)


def schedules(results: Results, clients: Clients) -> list[Part]:
    """Which schedule arrives first, and how many of its answers were of use."""
    parts: list[Part] = [*_arrivals(results, AXES), *_redundancy(results, clients), Heading("The paper's statements")]
    for problem, level in itertools.product(results.problems, LEVELS):
        kinds = _kinds(results, problem)
        judge = functools.partial(_first, results, problem, level)
        parts += judge("sequential PVI needs the fewest communications", "sequential", kinds, "communications")
        parts += judge("synchronous PVI needs less time than sequential PVI", "synchronous", _two(kinds), "clock")
        parts += judge("asynchronous PVI needs the least time", "asynchronous", kinds, "clock")
        parts += _last(results, problem, level, "asynchronous", kinds)
        if problem.endswith("B"):
            words = "with clients unlike, synchronous PVI needs fewer communications than sequential PVI"
            parts += judge(words, "synchronous", _two(kinds), "communications")
        parts += [_arrives(results, problem, level, run) for run in kinds.get("asynchronous", ())]
    return parts


def orders(results: Results, clients: Clients) -> list[Part]:
    """Which order is faster, by which measure."""
    parts: list[Part] = [*_arrivals(results, {"communications": "communications"}), Heading("The paper's statements")]
    for problem, level in itertools.product(results.problems, LEVELS):
        parts += _order_statements(results, problem, level.words, functools.partial(level.median, results, problem))
    return parts


def network(results: Results, clients: Clients) -> list[Part]:
    """Orders and damping where parameters may be without effect on predictions, and clients have few labels."""
    parts: list[Part] = [Heading("Where each run ends, mean ± sd over the seeds")]
    rows = [
        [problem, label(run), *(spread(results.final(problem, run, metric)) for metric in ("error", "nll"))]
        for problem, run in itertools.product(results.problems, results.runs)
        if results.has(problem, run) and results.methods[run] != "pooled"
    ]
    parts += [ReportTable(["problem", "run", "test error", "test NLL"], rows), Heading("The paper's statements")]
    for problem in results.problems:
        runs = [run for run in results.runs if run in ORDERS and results.has(problem, run)]
        if runs:
            level = max(results.final(problem, run).mean() for run in runs)
            words = f"at a test NLL of {level:.3f}, the highest final one"
            drawn = min(len(results.of(problem, run)) for run in runs)
            arrived = functools.partial(_first_at, results, problem, level)
            parts += _order_statements(results, problem, words, arrived, drawn)
        parts += _needs_damping(results, problem, "nll")
    return parts


def clients(results: Results, clients: Clients) -> list[Part]:
    """What becomes of communications, time and stability with ever more clients."""
    parts: list[Part] = [*_arrivals(results, AXES, (FREE_ENERGY,)), Heading("The paper's statements")]
    for problem in results.problems:
        parts += _more_than_sequential(results, problem)
    kinds = dict.fromkeys(map(kind_of, results.problems))
    for kind, run in itertools.product(kinds, ("synchronous, adaptive ρ", "synchronous, ρ = 1/M")):
        parts += _grows(results, clients, kind, run)
    for problem in results.problems:
        parts += _stable(results, problem, "synchronous, ρ = 1/M")
        if kind_of(problem) == "alike":
            parts += _similar(results, problem)
        parts += _needs_damping(results, problem, "gap")
    return parts


PAGES: Mapping[str, Callable[[Results, Clients], list[Part]]] = {
    "schedules": schedules,
    "schedules-orders": orders,
    "schedules-clients": clients,
    "schedules-network": network,
}
FIXED, RANDOM = "fixed order", "random order"
NORM, PREDICTED = "residual order, by norm", "residual order, by predictions"
ORDERS = (FIXED, RANDOM, "residual order, by KL", NORM, PREDICTED)


def _runs(results: Results, problem: str) -> list[str]:
    """The runs of PVI on a problem."""
    return [run for run in results.runs if results.has(problem, run) and results.methods[run] != "pooled"]


def _arrivals(results: Results, by: Mapping[str, str], levels: Sequence[Level] = LEVELS) -> list[Part]:
    """When each run has arrived."""
    parts: list[Part] = [
        Heading("When each run has arrived for good"),
        Text(
            "Medians over the seeds; ∞: not within the budget. Global VI's free energy is the highest that any run has "
            "found, Newton's method on the pooled rows among them, and its predictions are those found there."
        ),
    ]
    header = ["problem", "run", *(f"{name} {level.words}" for level in levels for name in by.values()), "ended"]
    rows = []
    for problem in results.problems:
        for run in _runs(results, problem):
            found = [count(level.median(results, problem, run, each)) for level in levels for each in by]
            rows.append([problem, label(run), *found, ", ".join(results.statuses(problem, run))])
    return [*parts, ReportTable(header, rows)]


def _kinds(results: Results, problem: str) -> dict[str, list[str]]:
    """The runs on a problem by their method; random subsets are a kind of their own."""
    found: dict[str, list[str]] = {}
    for run in _runs(results, problem):
        found.setdefault(results.methods[run], []).append(run)
    return found


def _two(kinds: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {kind: runs for kind, runs in kinds.items() if kind in ("sequential", "synchronous")}


def _soonest(
    results: Results, problem: str, level: Level, kinds: Mapping[str, list[str]], by: str
) -> dict[str, tuple[float, str]]:
    """When the quickest run of each kind has arrived, and which that is."""
    return {
        kind: min((level.median(results, problem, run, by), label(run)) for run in runs) for kind, runs in kinds.items()
    }


def _said(found: Mapping[str, tuple[float, str]]) -> str:
    return "; ".join(f"{name} {count(value)}" for value, name in sorted(found.values()))


def _first(
    results: Results, problem: str, level: Level, words: str, kind: str, kinds: Mapping[str, list[str]], by: str
) -> list[Part]:
    """Judges whether the quickest run of a kind arrives before those of all others."""
    found = _soonest(results, problem, level, kinds, by)
    if kind not in found or len(found) < 2:
        return []
    own, others = found[kind][0], min(value for name, (value, _) in found.items() if name != kind)
    holds = own < others if np.isfinite(min(own, others)) else None
    return [_arriving(f"{problem}: {words} until {level.words}.", holds, f"{_said(found)}.")]


def _last(results: Results, problem: str, level: Level, kind: str, kinds: Mapping[str, list[str]]) -> list[Part]:
    """Judges whether even the quickest run of a kind needs the most communications."""
    found = _soonest(results, problem, level, kinds, "communications")
    if kind not in found or len(found) < 2:
        return []
    own, others = found[kind][0], max(value for name, (value, _) in found.items() if name != kind)
    holds = None if np.isinf(own) and np.isinf(others) else own > others
    words = f"{problem}: {kind} PVI needs the most communications until {level.words}."
    return [_arriving(words, holds, f"{_said(found)}.")]


def _arrives(results: Results, problem: str, level: Level, run: str) -> Statement:
    arrived = level.median(results, problem, run)
    left = results.final(problem, run, level.metric) - level.target(results, problem)
    spent = max(cell["rows"][-1]["communications"] for cell in results.of(problem, run))
    when = f"from {arrived:.0f} communications on" if np.isfinite(arrived) else "not for good"
    return Statement(
        f"{problem}: {label(run)} comes {level.words}.",
        bool(np.isfinite(arrived)),
        f"{when}; after {spent:.0f} it is {spread(left)} away.",
    )


def _redundancy(results: Results, clients: Clients) -> list[Part]:
    """What share of a client's answers was redundant before the run arrived, of the quickest and of the others."""
    rows, judged = [], list[Part]()
    for problem in results.problems:
        shares = {}
        for run in _runs(results, problem):
            if results.methods[run] not in ("sequential", "asynchronous"):
                continue
            known = [cell for cell in results.of(problem, run) if all("client" in row for row in cell["rows"])]
            found = [part for cell in known if (part := _redundant(cell, len(clients[problem]))) is not None]
            if not found:
                continue
            quick, others, most, all_ = (float(np.mean(part)) for part in zip(*found, strict=True))
            shares[run] = quick
            rows.append([problem, label(run), f"{all_:.0f}", f"{most:.0f}", f"{quick:.0%}", f"{others:.0%}"])
        plain = [share for run, share in shares.items() if results.methods[run] == "sequential"]
        judged += [
            Statement(
                f"{problem}: of the quickest client's answers {label(run)} has at least twice the share redundant "
                "that sequential PVI has.",
                share >= 2 * max(plain) and share > 0,
                f"{share:.0%} against {max(plain):.0%} at most.",
            )
            for run, share in shares.items()
            if results.methods[run] == "asynchronous" and plain
        ]
    header = ["problem", "run", "answers", "of the quickest client", "redundant of these", "redundant of all others'"]
    told = (
        f"Before a run is {FREE_ENERGY.words}, or ends: an answer is redundant that changes the free energy by less "
        f"than {REDUNDANT:g}/M of what is left to global VI's. The quickest client is the one with the most answers, "
        "the first of several."
    )
    return [Heading("Redundant answers"), Text(told), ReportTable(header, rows), *judged] if rows else []


def _redundant(cell: Mapping[str, Any], clients: int) -> tuple[float, float, float, float] | None:
    """Shares of redundant answers of the quickest client and of all others, its answers, and all.

    None where only one client has answered.
    """
    (gap,) = columns(cell, "gap")
    away = np.flatnonzero(gap > NEAR)
    until = int(away[-1]) + 1 if len(away) else 0
    before, change = gap[:until], np.abs(np.diff(gap))[:until]
    names = np.array([row["client"] for row in cell["rows"]])[1 : until + 1]
    redundant = (change < REDUNDANT / clients * before[: len(change)])[: len(names)]
    labels, counts = np.unique(names, return_counts=True)
    own = names == labels[np.argmax(counts)]
    if not own.any() or own.all():
        return None
    return float(redundant[own].mean()), float(redundant[~own].mean()), float(own.sum()), float(len(names))


def _first_at(results: Results, problem: str, level: float, run: str) -> float:
    """The median communications at which a run's NLL first is as low as the level."""
    return float(np.median(results.first(problem, run, level, "nll")))


def _order_statements(
    results: Results, problem: str, words: str, arrived: Callable[[str], float], drawn: int = LEAST
) -> list[Part]:
    """Whether orders differ, whether residual order is faster than a fixed one, and whether a norm serves.

    `drawn` is the number of seeds where visits are random; visits that are solved exactly need no more than one.
    """
    found = {run: arrived(run) for run in ORDERS if results.has(problem, run)}
    if FIXED not in found or len(found) < 2:
        return []
    seen = "; ".join(f"{run} {count(number)}" for run, number in found.items()) + "."
    finite = [number for number in found.values() if np.isfinite(number)]
    judged = (len(finite) > 1 and drawn >= LEAST) or None
    lacks = "" if judged else lacking(drawn) or UNREACHED
    changes = f"{problem}: the order of visits changes the communications until {words} by more than a tenth."
    parts: list[Part] = [Statement(changes, judged and max(found.values()) > FASTER * min(found.values()), seen, lacks)]
    for run in ORDERS[2:]:
        if run in found:
            text = f"{problem}: {run}, needs over a tenth fewer communications than a fixed order until {words}."
            holds = judged and FASTER * found[run] < found[FIXED]
            parts.append(Statement(text, holds, _pair(found, run, FIXED), lacks))
    if NORM in found and PREDICTED in found:
        text = f"{problem}: a norm serves worse than predictions as the measure until {words}, by more than a tenth."
        holds = judged and FASTER * found[PREDICTED] < found[NORM]
        parts.append(Statement(text, holds, _pair(found, PREDICTED, NORM), lacks))
    return parts


def _arriving(text: str, holds: bool | None, seen: str) -> Statement:
    """A statement on when runs arrive, which is not judged where they do not."""
    return Statement(text, holds, seen, UNREACHED if holds is None else "")


def _pair(found: Mapping[str, float], first: str, second: str) -> str:
    return f"{count(found[first])} against {count(found[second])}."


def _needs_damping(results: Results, problem: str, metric: str) -> list[Part]:
    """Whether undamped sequential PVI ends higher than damped, for good."""
    plain, damped = (run if results.has(problem, run) else "" for run in ("sequential", "sequential, ρ = 0.3"))
    if not plain or not damped:
        return []
    ends = [results.final(problem, run, metric) for run in (plain, damped)]
    both = min(map(len, ends))
    worse = ends[0][:both] - ends[1][:both]
    what = "nats below global VI" if metric == "gap" else "test NLL"
    arrived = [FREE_ENERGY.median(results, problem, run) for run in (plain, damped)] if metric == "gap" else []
    more = f" Arrived after {count(arrived[0])} against {count(arrived[1])} communications." if arrived else ""
    text = f"{problem}: undamped sequential PVI struggles: it ends worse than with ρ = 0.3, by more than 2 sd."
    seen = f"{what} at the end: {spread(ends[0])} undamped, {spread(ends[1])} with ρ = 0.3.{more}"
    return [clearly(text, worse, 0.0, seen)]


def _more_than_sequential(results: Results, problem: str) -> list[Part]:
    found = {run: FREE_ENERGY.median(results, problem, run) for run in _runs(results, problem)}
    if "sequential" not in found:
        return []
    return [
        _arriving(
            f"{problem}: {label(run)} needs more communications than sequential PVI until {FREE_ENERGY.words}.",
            found[run] > found["sequential"] if np.isfinite(found["sequential"]) else None,
            _pair(found, run, "sequential"),
        )
        for run in found
        if results.methods[run] == "synchronous"
    ]


def _grows(results: Results, clients: Clients, kind: str, run: str) -> list[Part]:
    """Whether the ratio of its communications to those of sequential PVI grows with the number of clients."""
    problems = [name for name in results.problems if kind_of(name) == kind and results.has(name, run, "sequential")]
    ratios = {}
    for problem in problems:
        ours, theirs = (FREE_ENERGY.median(results, problem, name) for name in (run, "sequential"))
        if np.isfinite(ours) and np.isfinite(theirs):
            ratios[len(clients[problem])] = ours / theirs
    if len(ratios) < 2:
        return []
    values = [ratios[number] for number in sorted(ratios)]
    return [
        Statement(
            f"clients {kind}: with more clients {label(run)} needs more times the communications of sequential PVI.",
            all(later > earlier for earlier, later in itertools.pairwise(values)),
            "; ".join(f"M = {number:,}: {ratios[number]:.1f} times" for number in sorted(ratios)) + ".",
        )
    ]


def _stable(results: Results, problem: str, run: str) -> list[Part]:
    """Whether the free energy rises all the way."""
    if not results.has(problem, run):
        return []
    ends, cells = results.final(problem, run, "gap"), results.of(problem, run)
    falls = [float(np.max(np.diff(columns(cell, "gap")[0]), initial=0.0)) for cell in cells]
    rounds = max(cell["rows"][-1]["rounds"] for cell in cells)
    return [
        Statement(
            f"{problem}: with ρ = 1/M synchronous PVI is stable: its free energy never falls by {FALL:g} nats.",
            max(falls) < FALL,
            f"the largest fall is {max(falls):.1g} nats in {rounds:.0f} rounds, at whose end {spread(ends)} are left.",
        )
    ]


def _similar(results: Results, problem: str) -> list[Part]:
    """Whether sequential PVI and synchronous PVI with ρ = 1/M take similar time."""
    runs = ("sequential", "synchronous, ρ = 1/M")
    if not results.has(problem, *runs):
        return []
    times = [FREE_ENERGY.median(results, problem, run, "clock") for run in runs]
    ratio = times[1] / times[0]
    return [
        _arriving(
            f"{problem}: sequential PVI and synchronous PVI with ρ = 1/M take similar time until {FREE_ENERGY.words}, "
            f"neither more than {SIMILAR:g} times the other's.",
            bool(1 / SIMILAR <= ratio <= SIMILAR) if np.isfinite(times).all() else None,
            f"{count(times[0])} against {count(times[1])}.",
        )
    ]
