"""The configuration of an experiment, read from a TOML file: problems × methods × seeds."""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from partita.errors import InputError, unknown
from partita.inputs import check_whole
from partita.io.settings import build, parse
from partita.methods import NAMED
from partita.server.early_stopping import EarlyStopping

ON_ONE_CLIENT = ("pooled", "alone")
"""Global VI on one client that has all rows, and VI of every client by itself."""
METHODS = (*NAMED, *ON_ONE_CLIENT)
"""All methods that a run can have."""

NAMES = (
    "uci",
    "uci-adam",
    "mortality",
    "heart",
    "mnist-homogeneous",
    "mnist-early-stopping",
    "mnist-damping",
    "mnist-inhomogeneous",
    "mnist-ablation",
    "digits",
    "digits-damping",
    "digits-early-stopping",
    "digits-steps",
    "digits-order",
    "schedules",
    "schedules-orders",
    "schedules-clients",
    "schedules-network",
)
"""The experiments that come with the package."""

TABLED = ("inhomogeneity",)
"""Studies, each a module of its own with a `STUDY`, whose results are a table as well."""

Metric = Literal["error", "nll", "pruned", "train_nll", "gap"]
Axis = Literal["communications", "synchronous_steps", "clock"]
Measured = Literal["train", "clients"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """A data set, how it is divided among clients, and a model of it."""

    name: str
    data: str
    split: Mapping[str, Any]
    """The kind of division and its settings as in `partita.partitioners`; {kind = "given"} for clients as they are."""
    model: Literal["logistic", "network"] = "logistic"
    hidden: tuple[int, ...] = ()
    """Widths of a network's hidden layers."""
    samples: int = 10
    """How many draws an expectation under a network takes."""
    solver: str = ""
    """The clients' solver, unless a run or the command line overrides it."""
    learning_rate: float = 0.01
    """Learning rate of the server's optimiser, if the method has one."""
    clip: float = float("inf")
    """Standardised inputs are clipped to this absolute value, since clinical tables contain impossible values."""
    rows: int = 0
    """Number of training rows to use, in random order; 0 for all, in the order of the file."""
    validation: int = 0
    """Number of further training rows used for validation instead of the test rows; 0 for the test rows."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A method and its budget."""

    method: str
    communications: int
    name: str = ""
    """Name in results, figures and tables; the method's by default."""
    solver: str = ""
    """Overrides the solver of the problem and of the command line."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    evaluate_every: int = 1
    """How many server steps lie between two evaluations."""
    early: EarlyStopping | None = None
    """When the server stops early; never if left out."""
    problems: tuple[str, ...] = ()
    """The problems that it is run on, if not all: there it has this budget and these settings."""

    def __post_init__(self) -> None:
        check_whole("number of steps between two evaluations, evaluate_every,", self.evaluate_every)

    @property
    def named(self) -> str:
        """The name under which `partita.methods` has its method: on one client it is sequential PVI."""
        return "sequential" if self.method in ON_ONE_CLIENT else self.method

    @property
    def curve(self) -> str:
        """Its name, which no other run on the same problem has."""
        return self.name or self.method

    def serves(self, problem: Problem) -> bool:
        """Whether it is run on this problem."""
        return not self.problems or problem.name in self.problems


@dataclasses.dataclass(frozen=True)
class Quick:
    """Settings of the smoke run: less of everything, without downloads, and few solver steps per visit."""

    problems: tuple[Problem, ...]
    seeds: int
    rows: int
    communications: int
    max_steps: int = 20
    """How many steps a client's solver takes at most."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A question, the runs that answer it, and how they are drawn."""

    name: str
    title: str
    question: str
    seeds: int
    solvers: Mapping[str, Mapping[str, Any]]
    problems: tuple[Problem, ...]
    runs: tuple[Run, ...]
    quick: Quick
    slowness: tuple[float, ...] = (1.0,)
    """Factors, cycled over the clients, that multiply the simulated duration of a visit."""
    draws: int = 100
    """How many draws of a network's parameters a prediction averages."""
    alternatives: tuple[str, ...] = ()
    """Alternative data sets for the problems."""
    panels: tuple[Metric, ...] = ("error", "nll")
    """The metrics that are drawn, a column each."""
    by: tuple[Axis, ...] = ("communications",)
    """The horizontal axes; one figure for each."""
    log_metrics: bool = False
    """Whether error and NLL are drawn on a logarithmic scale."""
    by_method: bool = False
    """Whether every method has a figure of its own, as where its runs differ in a setting."""
    measured: tuple[Measured, ...] = ()
    """What is measured beside the test rows: error and NLL on all training rows, or NLL on the rows of each client."""
    smoke: bool = False
    """Whether this is the quick version."""

    def smoke_version(self) -> "Experiment":
        """The smoke version."""
        quick = self.quick
        first = {run.curve: run for run in reversed(self.runs)}
        return dataclasses.replace(
            self,
            title=f"{self.title} (smoke run: few rows, no conclusions)",
            seeds=quick.seeds,
            problems=quick.problems,
            runs=tuple(
                dataclasses.replace(
                    run,
                    communications=min(run.communications, quick.communications),
                    evaluate_every=1,
                    problems=(),
                )
                for run in self.runs
                if first[run.curve] is run
            ),
            smoke=True,
        )


def load(name: str, path: Path | None = None) -> Experiment:
    """The experiment of this name, with the configuration it comes with or one of the user's own."""
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    source = resources.files("partita_experiments").joinpath(f"{name}.toml") if path is None else path
    contents = parse(source.read_bytes(), str(source))
    if "name" in contents:
        raise InputError(f"{source} gives the experiment a name of its own: leave {name!r} to the command.")
    experiment = build(Experiment, {"name": name, **contents}, str(source))
    _check(experiment, str(source))
    return experiment


def file_name(name: str) -> str:
    """A name as part of a file's, without spaces and signs."""
    return re.sub(r"[^\w.=]+", "-", name)


def _check(experiment: Experiment, source: str) -> None:
    """Raises an `InputError` for unknown names, duplicate names, and an experiment without runs."""
    for run in experiment.runs:
        if run.method not in METHODS:
            raise unknown(f"method in {source}", run.method, METHODS)
    problems = (*experiment.problems, *experiment.quick.problems)
    named = [run.solver for run in experiment.runs if run.solver] + [problem.solver for problem in problems]
    for solver in named:
        if solver not in experiment.solvers:
            raise unknown(f"solver in {source}", solver, experiment.solvers)
    for problem in problems:
        if "kind" not in problem.split:
            raise InputError(f"{source} has a split without 'kind' in {problem.name!r}: add it.")
    for solver, settings in experiment.solvers.items():
        if not isinstance(settings, Mapping) or "kind" not in settings:
            raise InputError(f"{source} has a solver without 'kind', {solver!r}: add it.")
    known = [problem.name for problem in experiment.problems]
    for name in itertools.chain.from_iterable(run.problems for run in experiment.runs):
        if name not in known:
            raise unknown(f"problem in {source}", name, known)
    names = {
        "problem": known,
        **{
            f"method or name of a run on {problem.name}": [run.curve for run in experiment.runs if run.serves(problem)]
            for problem in experiment.problems
        },
        "panel": experiment.panels,
        "axis to draw by": experiment.by,
    }
    for kind, used in names.items():
        if len(set(map(file_name, used))) < len(used) or not used:
            raise InputError(f"{source} needs at least one {kind} and each only once, not {list(used)}.")
    if experiment.seeds < 1 or experiment.quick.seeds < 1 or not experiment.quick.problems:
        raise InputError(f"{source} needs at least one seed and, for the smoke run, one seed and one problem.")
