"""Commands of a federation: init, hand, leave, retire, join; server, client, status, resume, result."""

import contextlib
import json as jsons
import signal
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from partita.errors import InputError

federation = typer.Typer(no_args_is_help=True, help="Set up a federation, and change who takes part in it.")
Folder = Annotated[Path, typer.Argument(help="The federation's folder, with federation.toml.")]


@federation.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the federation.")],
    client: Annotated[list[str], typer.Option(help="The name of a client; repeat it for each.")],
    example: Annotated[Path, typer.Option(help="A CSV or parquet file with the columns that every client has.")],
    response: Annotated[str, typer.Option(help="The column to predict.")],
    model: Annotated[
        Literal["linear", "logistic", "probit", "poisson"], typer.Option(help="How the response depends on the others.")
    ] = "logistic",
    schedule: Annotated[
        Literal["sequential", "synchronous", "asynchronous"], typer.Option(help="Whose turn it is.")
    ] = "sequential",
    address: Annotated[
        str, typer.Option(help="Where clients find the server. Off this machine, certificates and keys are made.")
    ] = "127.0.0.1:9092",
    secure: Annotated[
        bool | None, typer.Option(help="Make certificates and keys; by default only off this machine.")
    ] = None,
) -> None:
    """Write a folder with federation.toml, to be read and edited, and a folder to hand to every client.

    The columns are those of the example file, which stays where it is; only their names and levels are written down.
    """
    from partita.federation.initialise import initialise

    for path in initialise(folder, client, response, example, address, model, schedule, secure):
        typer.echo(path)


@federation.command()
def hand(folder: Folder) -> None:
    """Write the clients' folders again after federation.toml was edited; clients new in it get keys."""
    from partita.federation import initialise

    for path in initialise.hand(folder):
        typer.echo(path)


@federation.command()
def leave(folder: Folder, name: Annotated[str, typer.Argument(help="The client.")]) -> None:
    """Ask a client no more; what it has contributed stays."""
    _request(folder, name, "leave")


@federation.command()
def retire(folder: Folder, name: Annotated[str, typer.Argument(help="The client.")]) -> None:
    """Ask a client no more, and divide out what it has contributed, as if it had never been there."""
    _request(folder, name, "retire")


@federation.command()
def join(folder: Folder, name: Annotated[str, typer.Argument(help="The client.")]) -> None:
    """Ask a client again that has left, or go on after the end with one that is new."""
    _request(folder, name, "join")


def _request(folder: Path, name: str, change: Literal["leave", "retire", "join"]) -> None:
    from partita.errors import unknown
    from partita.federation.config import load
    from partita.federation.serve import LEDGER
    from partita.storage.ledger import Ledger

    known = load(folder).clients
    if name not in known:
        raise unknown("client", name, known)
    Ledger(folder / LEDGER).request(name, change)
    typer.echo(f"The server will do so at its next step: {change} {name}.")


def server(folder: Folder) -> None:
    """Run a federation's server until its run has ended. Interrupt it as you like: `partita resume` goes on."""
    _serve(folder)


def resume(folder: Folder) -> None:
    """Go on with a federation whose server stopped, from the last answer that was taken in."""
    from partita.federation.serve import LEDGER

    if not (folder / LEDGER).exists():
        raise InputError(f"There is nothing to go on with in {folder}: `partita server {folder}` begins.")
    _serve(folder)


def _serve(folder: Path) -> None:
    from partita.federation.config import load
    from partita.federation.processes import serve

    about = load(folder)
    typer.echo(f"`partita status {folder} --web` shows meanwhile how it stands.")
    with _interruptible():
        typer.echo(serve(folder, about))
        typer.echo(f"`partita result {folder}` shows the posterior.")


def client(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Which of the federation's clients this is.")],
    data: Annotated[Path, typer.Option(help="A CSV or parquet file with the client's rows.")],
) -> None:
    """Run a client until it is interrupted: it answers the server's tasks, and its rows stay here."""
    from partita.federation import rows
    from partita.federation.config import load
    from partita.federation.processes import attend

    about = load(folder)
    frame = rows.read(data, about.data)
    typer.echo(f"{name}: {frame.size} rows of {data.name} fit. Waiting for {about.server.address}; Ctrl-C stops.")
    with _interruptible():
        attend(folder, about, name, data)


def status(
    folder: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until the run has ended.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Show it on a page for browsers on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The page's port; 0 is any that is free.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how a federation stands: its clients, free energy, residual, traffic."""
    from rich.console import Console
    from rich.live import Live

    from partita.cli.standing import show
    from partita.federation.config import load
    from partita.federation.status import Standing, standing, to_json
    from partita.federation.web import Page

    if watch + web + json > 1:
        raise InputError("--watch, --web and --json are three ways to show it: choose one.")
    about = load(folder)

    def look() -> Standing:
        return standing(folder, about.name, about.clients)

    if json:
        typer.echo(to_json(look(), indent=2))
    elif web:
        with _interruptible(), Page(look, port) as page:
            typer.echo(f"{page.address} shows how {about.name} stands, on this machine alone; Ctrl-C stops.")
            page.serve_forever()
    elif not watch:
        Console().print(show(look()))
    else:
        with _interruptible(), Live(show(look()), auto_refresh=False) as live:
            while not (now := look()).ended:
                live.update(show(now), refresh=True)
                time.sleep(1.0)
            live.update(show(now), refresh=True)


def result(
    folder: Folder,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show the posterior of a federation whose run has ended, and draw it."""
    from rich.console import Console
    from rich.table import Table as Grid

    from partita.federation.result import MOST, draw, summary

    rows = summary(folder)
    figure = draw(folder, rows)
    if json:
        typer.echo(jsons.dumps({"summary": rows, "files": {"figure": str(figure)}}, indent=2))
        return
    grid = Grid(title=f"Posterior of {folder.name}")
    for column in rows[0]:
        grid.add_column(column, justify="left" if column == "name" else "right")
    for row in rows[:MOST]:
        grid.add_row(*(f"{value:.4g}" if isinstance(value, float) else value or "" for value in row.values()))
    console = Console()
    console.print(grid)
    if len(rows) > MOST:
        console.print(
            f"These are {MOST} of {len(rows):,} parameters; {folder / 'summary.csv'} has all.", soft_wrap=True
        )
    console.print(f"Figure: {figure}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _interruptible() -> Any:
    """Ends at Ctrl-C and at a polite request, with everything that was started."""

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
