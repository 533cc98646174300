"""Extracts features with a progress bar, and caches them."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from partita.data.frame import Frame
from partita.errors import InputError
from partita.io.archive import read, write
from partita_experiments.datasets.fetch import cache
from partita_experiments.datasets.series import Measurements, features

Item = TypeVar("Item")

# Increment when the same files give other features, to invalidate the cache.
_FORMAT = 1


class StaySeries(NamedTuple):
    """The measurements of one stay: number of the variable, time in hours and value."""

    variable: np.ndarray
    time: np.ndarray
    value: np.ndarray


def cached_frame(folder: str, name: str, inputs: Iterable[Path], extract: Callable[[], Frame]) -> Frame:
    """The frame that `extract` makes of the input files, cached until their names, sizes or times change."""
    path = cache() / folder / f"{name}.npz"
    key = _key(inputs)
    with contextlib.suppress(InputError, KeyError):
        arrays, about = read(path)
        if about["key"] == key:
            return Frame.build(dict(zip(about["names"], arrays["x"], strict=True)), arrays["y"])
    frame = extract()
    # Without a writable cache the features are extracted again at the next call.
    with contextlib.suppress(OSError):
        x = np.stack(list(frame.columns.values()))
        write(path, {"x": x, "y": frame.y}, {"key": key, "names": list(frame.columns)})
    return frame


def feature_frame(stays: Iterable[StaySeries], variables: Sequence[str], y: np.ndarray) -> Frame:
    """The features of stays, one row each, with their responses."""
    parts = list(stays)
    stay = np.repeat(np.arange(len(parts)), [len(part.time) for part in parts])
    measurements = Measurements(stay, *(np.concatenate(entries) for entries in zip(*parts, strict=True)))
    x, names = features(measurements, len(parts), variables)
    return Frame.build(dict(zip(names, x.T, strict=True)), y)


def with_progress(items: Sequence[Item], label: str) -> Iterable[Item]:
    """The items, with a progress bar on a terminal and nothing elsewhere."""
    console = Console(stderr=True)
    return track(items, label, console=console, disable=not console.is_terminal)


def _key(inputs: Iterable[Path]) -> str:
    digest = hashlib.sha256(f"format {_FORMAT}\n".encode())
    for path in inputs:
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
