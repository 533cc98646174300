"""`partita update`, `partita forget` and `partita drift`: a fit in a folder, as time goes on."""

import contextlib
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from partita.tables.fit import Fit

__all__ = ["drift", "forget", "update"]

_Folder = Annotated[Path, typer.Argument(help="The folder that partita fit --output wrote.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def update(
    folder: _Folder,
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the new rows.")],
    name: Annotated[str, typer.Option(help="What the batch is called, such as 2026-06.")],
    revisit: Annotated[
        bool, typer.Option("--revisit", help="Visit all others again, from their files, until all have settled.")
    ] = False,
    json: _Json = False,
) -> None:
    """Take a batch of rows into a fit; it is one more factor, and the design stays as it is."""
    with _held(folder) as found:
        new = found.update(file, name, revisit)
        new.save(folder)
    _show(new, json)


def forget(
    folder: _Folder,
    name: Annotated[str, typer.Argument(help="The site or batch.")],
    json: _Json = False,
) -> None:
    """Divide a site or batch out of a fit, and let the others settle, whose files are read again."""
    with _held(folder) as found:
        new = found.without(name)
        new.save(folder)
    _show(new, json)


def drift(folder: _Folder, json: _Json = False) -> None:
    """Show how far each batch lies from all before it: in nats, and beside what is expected if nothing has changed."""
    found = _loaded(folder).drift()
    typer.echo(dumps([each.flat() for each in found.batches]) if json else repr(found))


@contextlib.contextmanager
def _held(folder: Path) -> "Iterator[Fit]":
    """The fit in a folder, which no other process changes meanwhile."""
    from partita.tables.study import held_study

    with held_study(folder):
        yield _loaded(folder)


def _loaded(folder: Path) -> "Fit":
    """The fit in a folder."""
    from partita.cli.beginning import begin
    from partita.tables.fit import Fit

    begin()
    return Fit.load(folder)


def _show(found: "Fit", json: bool) -> None:
    from partita.cli.fit import show_fit

    show_fit(found, 0.95, json)
