"""A progress bar on a terminal, nothing elsewhere."""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Shows communications, free energy and residual while a run goes on."""

    def __init__(self, label: str, total: float, show: bool | None = None) -> None:
        console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not (console.is_terminal if show is None else show),
        )
        self._task = self._bars.add_task(label, total=int(total) if math.isfinite(total) else None, figures="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, communications: int, row: Mapping[str, Any]) -> None:
        """Moves the bar to so many communications."""
        figures = f"residual {row['residual']:.2g}"
        if "free_energy" in row:
            figures = f"free energy {row['free_energy']:.1f}, {figures}"
        self._bars.update(self._task, completed=communications, figures=figures)
