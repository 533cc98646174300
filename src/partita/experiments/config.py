"""What an experiment is, read from a TOML file: problems × methods × seeds."""

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from partita.errors import InputError, unknown
from partita.methods import NAMED

NAMES = ("uci", "mortality", "heart")
"""The experiments that come with the package."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A data set, how it is divided among clients, and a model of it."""

    name: str
    data: str
    split: Mapping[str, Any]
    """The kind of division and its settings as in `partita.splits`; {kind = "given"} for clients as they are."""
    model: Literal["logistic", "network"] = "logistic"
    hidden: tuple[int, ...] = ()
    """Widths of a network's hidden layers."""
    solver: str = ""
    """How clients solve, unless the command line says otherwise."""
    learning_rate: float = 0.01
    """Of the server's optimiser, where the server has one."""
    clip: float = float("inf")
    """Standardised inputs farther from 0 than this are set there: clinical tables hold impossible values."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A method and its budget."""

    method: str
    communications: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    evaluate_every: int = 1
    """How many server steps lie between two evaluations."""


@dataclasses.dataclass(frozen=True)
class Quick:
    """The smoke run: fewer of everything, on data that need no download."""

    problems: tuple[str, ...]
    seeds: int
    rows: int
    communications: int
    data: str = ""
    """Another data set to use instead."""


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
    """Factors, repeated over the clients, by which a visit takes longer than its rows say on the simulated clock."""
    draws: int = 100
    """How many draws of a network's parameters a prediction averages."""
    log_metrics: bool = False
    """Whether error and NLL are drawn on logarithmic axes."""
    smoke: bool = False
    """Whether this is the quick version."""

    def quickly(self) -> "Experiment":
        """The smoke version."""
        quick = self.quick
        problems = [problem for problem in self.problems if problem.name in quick.problems]
        return dataclasses.replace(
            self,
            title=f"{self.title} (smoke run: few rows, no conclusions)",
            seeds=quick.seeds,
            problems=tuple(dataclasses.replace(problem, data=quick.data or problem.data) for problem in problems),
            runs=tuple(
                dataclasses.replace(run, communications=min(run.communications, quick.communications))
                for run in self.runs
            ),
            smoke=True,
        )


def load(name: str, path: Path | None = None) -> Experiment:
    """The experiment of this name, with the configuration it comes with or one of the user's own."""
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    source = resources.files("partita.experiments").joinpath(f"{name}.toml") if path is None else path
    try:
        contents = tomllib.loads(source.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not a TOML file: {error}.") from None
    experiment = _read(Experiment, {"name": name, **contents}, str(source))
    for run in experiment.runs:
        if run.method not in NAMED:
            raise unknown(f"method in {source}", run.method, NAMED)
    for problem in experiment.problems:
        if problem.solver not in experiment.solvers:
            raise unknown(f"solver in {source}", problem.solver, experiment.solvers)
    return experiment


_PARTS: Mapping[str, type] = {"problems": Problem, "runs": Run, "quick": Quick}


def _read(kind: type[T], contents: Mapping[str, Any], source: str) -> T:
    """A dataclass from a table; a key too many or too few is named."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in contents:
        if key not in fields:
            raise unknown(f"setting of {kind.__name__.lower()} in {source}", key, fields)
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in contents:
            raise InputError(f"{source} has a {kind.__name__.lower()} without {name!r}: add it.")
    values = {key: _value(key, value, source) for key, value in contents.items()}
    return kind(**values)


def _value(key: str, value: Any, source: str) -> Any:
    if key in _PARTS and isinstance(value, dict):
        return _read(_PARTS[key], value, source)
    if key in _PARTS and value and isinstance(value[0], dict):
        return tuple(_read(_PARTS[key], part, source) for part in value)
    return tuple(value) if isinstance(value, list) else value
