"""Rows of numbers as a table of text."""

import io
import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["MAX_PARAMETERS_SHOWN", "printed"]

MAX_PARAMETERS_SHOWN = 60
"""The largest number of parameters shown in a figure or a terminal."""


def printed(title: str, rows: Sequence[Mapping[str, float | str]]) -> str:
    """The first rows, with a sentence where there are more; what is not a number is left empty."""
    grid = Table(title=title)
    for column in rows[0]:
        grid.add_column(column, justify="left" if column == "name" else "right", no_wrap=column != "name")
    for row in rows[:MAX_PARAMETERS_SHOWN]:
        grid.add_row(*map(_cell, row.values()))
    out = io.StringIO()
    console = Console(file=out, width=120, force_jupyter=False, color_system=None, highlight=False, markup=False)
    console.print(grid)
    if len(rows) > MAX_PARAMETERS_SHOWN:
        console.print(f"Shown: {MAX_PARAMETERS_SHOWN} of {len(rows):,} parameters; all are in summary.csv.")
    return out.getvalue().rstrip()


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return "" if math.isnan(value) else f"{value:.4g}"
