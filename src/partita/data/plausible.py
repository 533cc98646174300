"""Whether a client's sums can be those of its rows, and whether they lie far from what the others have sent.

A client may send anything. What no rows can have is refused by itself; what rows could have is compared with the
medians over all clients, which one liar among three cannot move.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from partita.data.columns import Counts, Moments
from partita.data.preprocess import Summary
from partita.errors import DataError
from partita.io.wire import is_plain

__all__ = ["MOST_LEVELS", "check_sums", "crowding", "outlying"]

MOST_LEVELS = 1000
"""The largest number of levels of a category."""
_LONGEST = 200
"""The largest number of characters of a level; longer ones are free text."""


def check_sums(summary: Summary, least: int, most: int, whole: bool) -> None:
    """Raises an `InputError` unless all columns can be of the same rows.

    Args:
        summary: What a client has sent.
        least: The smallest number of rows that it can be of.
        most: The largest.
        whole: Whether no number is missing; a category never is.

    """
    sizes = {name: column.size for name, column in summary.columns.items()}
    complete = {name for name, column in summary.columns.items() if whole or isinstance(column, Counts)}
    rows = max(sizes.values(), default=least)
    if rows > most or (complete and rows < least):
        raise DataError(f"Its sums are of {rows:,} rows, where it has {least:,}.")
    for name, column in summary.columns.items():
        if name in complete and column.size != rows:
            raise DataError(f"Its sums of {name!r} are of {column.size:,} rows, and others of {rows:,}.")
        if len(column.levels) > MOST_LEVELS:
            raise DataError(
                f"{name!r} has {len(column.levels):,} levels, more than {MOST_LEVELS:,}: is it an identifier?"
            )
        _check_texts(f"levels of {name!r}", column.levels)
    if summary.labels is not None:
        _check_texts("labels of the response", (*summary.labels.ones, *summary.labels.zeros))


def _check_texts(what: str, texts: Sequence[str]) -> None:
    if not all(len(text) <= _LONGEST and is_plain(text) for text in texts):
        raise DataError(
            f"Some {what} have more than {_LONGEST} characters, or some that cannot be printed: recode them."
        )


def crowding(summaries: Mapping[str, Summary]) -> dict[str, str]:
    """The clients with so many levels of their own that all together have too many, and why; fewer than half of all."""
    found: dict[str, str] = {}
    columns = [name for one in list(summaries.values())[:1] for name in one.columns]
    for column in columns:
        own = {name: set(each.columns[column].levels) for name, each in summaries.items() if name not in found}
        odd = dict[str, str]()
        while own and len(set().union(*own.values())) > MOST_LEVELS:
            alone = {name: len(mine - set().union(*_others(own, name))) for name, mine in own.items()}
            worst = max(alone, key=lambda name: alone[name])
            odd[worst] = f"{column!r} has {alone[worst]:,} levels that no other client has: is it an identifier?"
            del own[worst]
        if len(odd) < len(summaries) / 2:
            found |= odd
    return found


def _others(own: Mapping[str, set[str]], name: str) -> list[set[str]]:
    return [levels for other, levels in own.items() if other != name]


def outlying(summaries: Mapping[str, Summary], bound: float) -> dict[str, str]:
    """The clients whose means or sds lie beyond a bound from the medians of all clients', and why.

    A mean lies as far as its distance from the median of means in medians of sds, an sd as far as it is times their
    median. The farthest goes first, and the others are compared again without it. Three clients are needed: the median
    of three is not moved by one. What lies between 0 and 1 at all clients, as shares and splines do, lies nowhere far.

    Args:
        summaries: What every client has sent.
        bound: The largest distance and ratio; 0 is none.

    """
    found: dict[str, str] = {}
    left = dict(summaries)
    columns = [
        name
        for name in next(iter(summaries.values()), Summary({})).columns
        if all(isinstance(each.columns[name], Moments) for each in summaries.values())
    ]
    while columns and bound and len(left) > 2:
        measures = _measures(left, columns)
        which, k, place = np.unravel_index(int(np.argmax(measures)), measures.shape)
        times = float(measures[which, k, place])
        if times <= bound:
            break
        worst, said = list(left)[int(k)], _SAID[int(which)].format(column=columns[int(place)], times=times)
        found[worst] = f"{said} the median of all, where {bound:.3g} are allowed"
        del left[worst]
    return found


_SAID = (
    "has a mean of {column!r} that lies {times:.3g} sds from",
    "has an sd of {column!r} that is {times:.3g} times",
)
"""What is said of a mean, and of an sd."""


def _measures(summaries: Mapping[str, Summary], columns: Sequence[str]) -> Float[np.ndarray, "2 m c"]:
    """How far every client's mean and sd of every column lie from the medians."""
    mean, sd, bounded = (_table(summaries, columns, what) for what in ("mean", "sd", "is_bounded"))
    middle, unit = np.median(mean, axis=0), np.sort(sd, axis=0)[len(summaries) // 2]
    for wider in (sd.max(axis=0), np.abs(middle)):  # where most are constant
        unit = np.where(unit > 0, unit, wider)
    compared = (unit > 0) & ~bounded.all(axis=0)
    measures = np.stack([np.abs(mean - middle), sd]) / np.where(compared, unit, np.inf)
    return measures


def _table(summaries: Mapping[str, Summary], columns: Sequence[str], what: str) -> np.ndarray:
    """A number of each client and column."""
    return np.array([[getattr(each.columns[name], what) for name in columns] for each in summaries.values()])
