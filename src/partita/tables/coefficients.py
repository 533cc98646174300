"""The coefficients of a fit, and the table that is printed of them."""

import dataclasses
import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["Coefficient", "Grid", "coefficient_grid", "short", "text_table"]

_PLAIN = ("name", "mean", "sd", "low", "high", "standardised")


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

    def flat(self) -> dict[str, float | str]:
        """The same with one number a field, for a table in a file, without what has no meaning."""
        fields = {name: getattr(self, name) for name in _PLAIN if getattr(self, name) is not None}
        return fields | dict(zip(("ratio", "ratio_low", "ratio_high"), self.ratio or (), strict=bool(self.ratio)))


Grid = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The heads of a table, and its rows, of which the first cell is a name."""


def coefficient_grid(rows: Sequence[Coefficient], ratio: str | None, mass: float) -> Grid:
    """Coefficients as a table; `ratio` is what exp(coefficient) is called."""
    heads = ["", "mean", "sd", f"{mass:.0%} interval", *([ratio, "its interval"] if ratio else []), "standardised"]
    cells = []
    for row in rows:
        shown = [row.name, short(row.mean), short(row.sd), f"{short(row.low)} to {short(row.high)}"]
        if row.ratio is not None:
            shown += [short(row.ratio[0]), f"{short(row.ratio[1])} to {short(row.ratio[2])}"]
        elif ratio:
            shown += ["", ""]
        cells.append([*shown, "" if row.standardised is None else short(row.standardised)])
    return heads, cells


def text_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A title, a table whose first column has names, and sentences below it."""
    table = Table(box=None, pad_edge=False)
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    out = io.StringIO()
    console = Console(file=out, width=120, force_jupyter=False, color_system=None, highlight=False, markup=False)
    console.print(title, "\n")
    console.print(table)
    console.print()
    for note in notes:
        console.print(note)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def short(number: float) -> str:
    """A number with three digits behind the point, or in powers of ten."""
    if number == 0 or 1e-2 <= abs(number) < 1e4:
        return f"{number:.3f}"
    return f"{number:.2e}" if abs(number) < 1e-4 else f"{number:.3g}"
