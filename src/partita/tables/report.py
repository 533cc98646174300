"""A fit as text."""

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from partita.tables.fit import Fit

__all__ = ["printed"]


def printed(fit: "Fit", mass: float = 0.95, width: int = 110) -> str:
    """The table of coefficients, and what a reader should know of it."""
    table = Table(box=None, pad_edge=False)
    ratio = fit.likelihood.ratio
    heads = ["", "mean", "sd", f"{mass:.0%} interval", *([ratio, "its interval"] if ratio else []), "standardised"]
    for head in heads:
        table.add_column(head, justify="right" if head else "left")
    for row in fit.coefficients(mass):
        cells = [row.name, _short(row.mean), _short(row.sd), f"{_short(row.low)} to {_short(row.high)}"]
        if row.ratio is not None:
            cells += [_short(row.ratio[0]), f"{_short(row.ratio[1])} to {_short(row.ratio[2])}"]
        table.add_row(*cells, _short(row.standardised))
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(f"{fit.design.formula.text}   ({fit.family}, {fit.result.status.value})\n", highlight=False, markup=False)
    console.print(table)
    console.print()
    for note in fit.notes:
        console.print(note, highlight=False, markup=False)
    return out.getvalue().rstrip()


def _short(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 1e-2 or abs(number) >= 1e4 else f"{number:.3f}"
