"""The coefficients of a fit, and the table that is printed of them."""

import dataclasses
import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["Coefficient", "printed"]


@dataclasses.dataclass(frozen=True)
class Coefficient:
    """One row of a table of results."""

    name: str
    mean: float
    sd: float
    low: float
    high: float
    standardised: float | None
    """The mean for the standardised column; None of what belongs to no column, such as a dispersion."""
    ratio: tuple[float, ...] | None
    """exp(mean) and the ends of its interval, where it has a meaning."""


def printed(title: str, rows: Sequence[Coefficient], ratio: str | None, notes: Sequence[str], mass: float) -> str:
    """A title, a table and what a reader should know of it; `ratio` is what exp(coefficient) is called."""
    table = Table(box=None, pad_edge=False)
    heads = ["mean", "sd", f"{mass:.0%} interval", *([ratio, "its interval"] if ratio else []), "standardised"]
    table.add_column("", overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        cells = [row.name, _short(row.mean), _short(row.sd), f"{_short(row.low)} to {_short(row.high)}"]
        if row.ratio is not None:
            cells += [_short(row.ratio[0]), f"{_short(row.ratio[1])} to {_short(row.ratio[2])}"]
        elif ratio:
            cells += ["", ""]
        table.add_row(*cells, "" if row.standardised is None else _short(row.standardised))
    out = io.StringIO()
    console = Console(file=out, width=120, color_system=None, highlight=False, markup=False)
    console.print(title, "\n")
    console.print(table)
    console.print()
    for note in notes:
        console.print(note)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _short(number: float) -> str:
    if number == 0 or 1e-2 <= abs(number) < 1e4:
        return f"{number:.3f}"
    return f"{number:.2e}" if abs(number) < 1e-4 else f"{number:.3g}"
