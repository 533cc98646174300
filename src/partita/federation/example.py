"""What example files say of a federation's columns: kinds, levels and labels; identifiers are left out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from partita.data.columns import texts
from partita.errors import FederationError, unknown
from partita.federation.rows import whole

__all__ = ["Example", "of_files"]

_FEW, _MANY = 3, 20
"""From how many rows on texts, and whole numbers, that are all different are taken for identifiers."""


class Example(NamedTuple):
    """Columns by their kinds."""

    numbers: list[str]
    categories: dict[str, list[str]]
    """With their levels."""
    labels: list[str]
    """Of a response that is not numbers."""
    left_out: list[str]
    """Identifiers, such as names and keys."""


def of_files(paths: Sequence[Path], response: str) -> Example:
    """The columns of files that have the same; texts are categories, with the levels of all files."""
    tables = {path.name: whole(path) for path in paths}
    (first, table), *others = tables.items()
    if response not in table.columns:
        raise unknown(f"column of {first}", response, table.columns)
    for name, other in others:
        for column in table.columns:
            if column not in other.columns:
                raise FederationError(
                    f"{name} has no column {column!r}, which {first} has: give examples with the same columns."
                )
    found = Example([], {}, [], [])
    for column in table.columns:
        values = [each[column] for each in tables.values()]
        words = [text for each in values for text in texts(each)]
        is_number = all(each.dtype.is_numeric() for each in values)
        if column == response:
            found.labels.extend([] if is_number else sorted(set(words)))
        elif _identifies(words, is_number, values):
            found.left_out.append(column)
        elif is_number:
            found.numbers.append(column)
        else:
            found.categories[column] = sorted(set(words))
    return found


def _identifies(words: Sequence[str], is_number: bool, values: Sequence[Any]) -> bool:
    """Whether a column tells rows apart: whole numbers that are all different, or texts that mostly are."""
    rows, different = len(words), len(set(words))
    if is_number:
        return all(each.dtype.is_integer() for each in values) and different == rows >= _MANY
    return different == rows >= _FEW or (rows >= _MANY and different > rows / 2)
