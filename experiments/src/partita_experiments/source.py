"""Where a problem's rows come from: frames, which clients encode together, or tables of numbers as they are."""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from partita.data.datasets import Dataset, digits
from partita.data.frame import Frame, Frames
from partita.data.preprocess import federated
from partita.data.table import Table
from partita.errors import unknown
from partita_experiments.datasets.heart import heart_frames
from partita_experiments.datasets.mimic import mimic_frames
from partita_experiments.datasets.mnist import mnist
from partita_experiments.datasets.physionet import physionet_frames
from partita_experiments.datasets.uci import frames as uci_frames

Indices = Int[np.ndarray, " n"]


class Division(NamedTuple):
    """The partition of the training rows among clients."""

    clients: Sequence[Indices]
    names: Sequence[str] | None
    """The clients' names, if they have any."""
    held_out: Indices | None = None
    """Training rows used for validation instead of the test rows."""


class Source(abc.ABC):
    """Training and test rows, whatever they look like."""

    owners: Mapping[str, Indices]
    """The training rows of each owner, such as a hospital; of one owner where nobody owns them."""
    y: Float[np.ndarray, " n"]
    """The responses of the training rows."""

    @abc.abstractmethod
    def inputs(self, rows: Indices, clip: float) -> Float[np.ndarray, "n d"]:
        """Inputs of training rows, scaled alike, to find clusters among."""

    @abc.abstractmethod
    def tables(self, division: Division, clip: float, intercept: bool) -> tuple[list[Table], Table]:
        """Each client's training rows and everybody's test rows, as numbers."""


class FrameSource(Source):
    """Frames of one or more owners; clients agree on a common encoding by sharing sums only."""

    def __init__(self, frames: Mapping[str, Frames]) -> None:
        self.train = _concatenate([pair.train for pair in frames.values()])
        self.test = _concatenate([pair.test for pair in frames.values()])
        ends = np.cumsum([pair.train.size for pair in frames.values()])
        self.owners = dict(zip(frames, np.split(np.arange(self.train.size), ends[:-1]), strict=True))
        self.y = self.train.y

    def inputs(self, rows: Indices, clip: float) -> Float[np.ndarray, "n d"]:
        frame = self.train.rows(rows)
        return np.clip(federated([frame]).encode(frame).x[:, 1:], -clip, clip)

    def tables(self, division: Division, clip: float, intercept: bool) -> tuple[list[Table], Table]:
        train = [self.train.rows(rows) for rows in division.clients]
        test = self.test if division.held_out is None else self.train.rows(division.held_out)
        encoding = federated(train)

        def table(frame: Frame) -> Table:
            encoded = encoding.encode(frame)
            x: Any = np.clip(encoded.x, -clip, clip)
            return Table(x if intercept else x[:, 1:], encoded.y)

        return [table(frame) for frame in train], table(test)


class TableSource(Source):
    """Numeric tables, such as images, that are used without scaling."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.y = np.asarray(data.train.y)
        self.owners = {"all": np.arange(len(self.y))}

    def inputs(self, rows: Indices, clip: float) -> Float[np.ndarray, "n d"]:
        return np.asarray(self.data.train.x)[rows]

    def tables(self, division: Division, clip: float, intercept: bool) -> tuple[list[Table], Table]:
        train = self.data.train

        def table(source: Table, rows: Indices | slice) -> Table:
            x: Any = np.asarray(source.x)[rows]
            return Table(np.insert(x, 0, 1, axis=1) if intercept else x, source.y[rows])

        held_out = division.held_out
        test = table(self.data.test, slice(None)) if held_out is None else table(train, held_out)
        return [table(train, rows) for rows in division.clients], test


def load(data: str) -> Source:
    """The data set of this name."""
    sources: dict[str, Callable[[], Source]] = {
        **{name: functools.partial(_single_owner, uci_frames, name) for name in ("adult", "bank", "credit")},
        "physionet": functools.partial(_single_owner, physionet_frames),
        "mimic": functools.partial(_single_owner, mimic_frames),
        "heart": lambda: FrameSource(heart_frames()),
        "made up": lambda: FrameSource(synthetic_frames()),
        "mnist": lambda: TableSource(mnist()),
        "digits": lambda: TableSource(digits()),
        "generated": lambda: TableSource(generated()),
    }
    if data not in sources:
        raise unknown("data set", data, sources)
    return sources[data]()


def synthetic_frames(rows: int = 400, columns: int = 12, owners: int = 4) -> dict[str, Frames]:
    """Rows of owners whose inputs lie in different places, drawn from one logistic regression, for smoke runs."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=columns)

    def frame(centre: np.ndarray) -> Frame:
        x = centre + generator.normal(size=(rows // owners, columns))
        y = generator.random(len(x)) < 1 / (1 + np.exp(-(x @ weights)))
        return Frame.build({f"input {j}": x[:, j] for j in range(columns)}, y.astype(float))

    centres = generator.normal(size=(owners, columns))
    return {f"owner {k}": Frames(frame(centre), frame(centre)) for k, centre in enumerate(centres)}


def generated(rows: int = 20_000, columns: int = 9) -> Dataset:
    """Rows drawn from one logistic regression, to be divided among any number of clients; a tenth as many to test."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=columns)

    def drawn(count: int) -> Table:
        x: Any = generator.normal(size=(count, columns))
        y: Any = generator.random(count) < 1 / (1 + np.exp(-(x @ weights)))
        return Table(x, y.astype(float))

    return Dataset(drawn(rows), drawn(rows // 10), tuple(f"input {j}" for j in range(columns)))


def _single_owner(source: Callable[..., Frames], *arguments: str) -> Source:
    return FrameSource({"all": source(*arguments)})


def _concatenate(frames: Sequence[Frame]) -> Frame:
    columns = {name: np.concatenate([frame.columns[name] for frame in frames]) for name in frames[0].columns}
    return Frame.build(columns, np.concatenate([frame.y for frame in frames]), frames[0].levels)
