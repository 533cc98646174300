"""A posterior's summary: rows of numbers that print as a table."""

from collections.abc import Callable, Iterable

__all__ = ["Summary"]

_Row = dict[str, float | str]


class Summary(list[_Row]):
    """A list of rows, one per parameter. Printed it is a table, and below it what a reader has to know."""

    def __init__(self, rows: Iterable[_Row], caveat: Callable[[], str]) -> None:
        super().__init__(rows)
        self.caveat = caveat

    def __reduce__(self) -> tuple[type, tuple[list[_Row]]]:
        """The rows alone: what the sentence is computed from stays here."""
        return list, (list(self),)

    def __str__(self) -> str:
        cells = [list(self[0]), *([_cell(value) for value in row.values()] for row in self)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
        return "\n".join(filter(None, [*lines, self.caveat()]))


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
