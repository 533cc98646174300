"""A progress bar, shown only on a terminal."""

import contextlib
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partita.results.history import with_error

__all__ = ["Progress"]

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


class Progress(contextlib.ExitStack):
    """Shows communications, free energy and residual while a run goes on. Rich is loaded only where it is shown."""

    def __init__(self, label: str, total: float, show: bool | None = None) -> None:
        super().__init__()
        self._bars: Bars | None = None
        if show or (show is None and sys.stderr is not None and sys.stderr.isatty()):
            self._bars = _bars()
            self._task = self._bars.add_task(label, total=int(total) if math.isfinite(total) else None, figures="")
            self.enter_context(self._bars)

    def update(self, communications: int, row: Mapping[str, Any]) -> None:
        """Updates the bar with the number of communications and the last history row."""
        if self._bars is None:
            return
        figures = f"residual {row['residual']:.2g}"
        if "free_energy" in row:
            energy = with_error(row["free_energy"], row.get("free_energy_error", 0.0), ".1f")
            figures = f"free energy {energy}, {figures}"
        self._bars.update(self._task, completed=communications, figures=figures)


def _bars() -> "Bars":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
        console=Console(stderr=True),
    )
