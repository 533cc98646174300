"""Commands of a federation: init, credentials, leave, retire, join; server, client, status, resume, result."""

import contextlib
import json as jsons
import signal
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from partita.errors import InputError
from partita.io.names import Regression, Turns

__all__ = [
    "client",
    "credentials",
    "federation",
    "init",
    "join",
    "leave",
    "result",
    "resume",
    "retire",
    "server",
    "status",
]

federation = typer.Typer(no_args_is_help=True, help="Set up a federation and manage its clients.")
_Folder = Annotated[Path, typer.Argument(help="The federation's folder, with federation.toml.")]


@federation.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the federation.")],
    client: Annotated[list[str], typer.Option(help="The name of a client; repeat it for each.")],
    example: Annotated[
        list[Path],
        typer.Option(help="A CSV or parquet file with the columns that every client has; repeat it for more labels."),
    ],
    response: Annotated[str, typer.Option(help="The column to predict.")],
    model: Annotated[Regression, typer.Option(help="The kind of regression.")] = "logistic",
    schedule: Annotated[Turns, typer.Option(help="The schedule of clients.")] = "sequential",
    address: Annotated[
        str, typer.Option(help="The server's address. Unless on loopback, certificates and keys are made.")
    ] = "127.0.0.1:9092",
    secure: Annotated[
        bool | None, typer.Option(help="Make certificates and keys; by default unless on loopback.")
    ] = None,
) -> None:
    """Write federation.toml, for review and editing, and a folder to give to each client.

    Columns are taken from the example files; their rows are not copied. Levels are collected from the clients.
    """
    from partita.federation.initialise import initialise

    made = initialise(folder, client, response, example, address, model, schedule, secure)
    for path in made.written:
        typer.echo(path)
    if made.left_out:
        typer.echo(
            f"Left out: {', '.join(map(repr, made.left_out))}, whose values are nearly all different, as identifiers' "
            f"are; to use them, add them to {folder / 'federation.toml'} and run "
            f"`partita federation credentials {folder}`."
        )


@federation.command()
def credentials(folder: _Folder) -> None:
    """Issue the clients' folders again after an edit of federation.toml; new clients get keys."""
    from partita.federation import initialise

    for path in initialise.issue_credentials(folder):
        typer.echo(path)


@federation.command()
def leave(folder: _Folder, name: Annotated[str, typer.Argument(help="The client.")]) -> None:
    """Stop asking a client and keep its factor."""
    _request(folder, name, "leave")


@federation.command()
def retire(folder: _Folder, name: Annotated[str, typer.Argument(help="The client.")]) -> None:
    """Stop asking a client and divide its factor out of the posterior."""
    _request(folder, name, "retire")


@federation.command()
def join(folder: _Folder, name: Annotated[str, typer.Argument(help="The client.")]) -> None:
    """Reactivate a client that has left, or add a new one after a run has ended."""
    _request(folder, name, "join")


def _request(folder: Path, name: str, change: Literal["leave", "retire", "join"]) -> None:
    from partita.errors import unknown
    from partita.federation.config import load
    from partita.federation.serve import LEDGER_FILE
    from partita.storage.ledger import Ledger

    known = load(folder).clients
    if name not in known:
        raise unknown("client", name, known)
    Ledger(folder / LEDGER_FILE).request(name, change)
    typer.echo(f"Requested: {change} {name}. The server applies it at its next step.")
    typer.echo(f"If the run has ended, `partita resume {folder}` goes on with it.")


def server(folder: _Folder) -> None:
    """Run a federation's server until the run ends. It can be interrupted and continued with `partita resume`."""
    from partita.federation.config import load
    from partita.federation.processes import serve

    about = load(folder)
    typer.echo(f"See the status with `partita status {folder} --web`.")
    with _interruptible():
        typer.echo(serve(folder, about))
        typer.echo(f"See the posterior with `partita result {folder}`.")


def resume(folder: _Folder) -> None:
    """Resume a federation whose server stopped, from the last accepted answer."""
    from partita.federation.serve import LEDGER_FILE

    if not (folder / LEDGER_FILE).exists():
        raise InputError(f"There is nothing to resume in {folder}: start with `partita server {folder}`.")
    server(folder)


def client(
    folder: _Folder,
    name: Annotated[str, typer.Option(help="The client's name.")],
    data: Annotated[Path, typer.Option(help="A CSV or parquet file with the client's rows.")],
) -> None:
    """Run a client until it is interrupted. It answers the server's tasks; its rows stay on this machine."""
    from partita.federation.client import usable
    from partita.federation.config import load
    from partita.federation.processes import run_client

    about = load(folder)
    try:
        read = f"read {usable(data, about).size} rows of {data.name}."
    except InputError as error:
        if error.public is None or not data.is_file():
            raise
        read = f"{error} The client stays, so that the server is told and waits: correct the file, it is read again."
    typer.echo(f"{name}: {read} Waiting for {about.server.address}; Ctrl-C stops.")
    with _interruptible():
        run_client(folder, about, name, data)


def status(
    folder: _Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until the run ends.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Serve a status page for browsers on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The page's port; 0 picks a free one.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a federation's status: clients, free energy, residual, traffic."""
    from rich.console import Console
    from rich.live import Live

    from partita.cli.status_table import show
    from partita.federation.config import load
    from partita.federation.status import FederationStatus, read_status, to_json
    from partita.federation.web import Page

    if watch + web + json > 1:
        raise InputError("--watch, --web and --json exclude one another: choose one.")
    about = load(folder)

    def look() -> FederationStatus:
        return read_status(folder, about.name, about.clients)

    if json:
        typer.echo(to_json(look(), indent=2))
    elif web:
        with _interruptible(), Page(look, port) as page:
            typer.echo(f"{page.address} shows the status of {about.name}, on this machine only; Ctrl-C stops.")
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
    folder: _Folder,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show and plot the posterior of a federation after its run."""
    from rich.console import Console
    from rich.table import Table as Grid

    from partita.federation.result import MAX_PARAMETERS_SHOWN, account, draw, summary

    rows = summary(folder)
    figure = draw(folder, rows)
    if json:
        about = {"summary": rows, "account": account(folder), "files": {"figure": str(figure)}}
        typer.echo(jsons.dumps(about, indent=2))
        return
    grid = Grid(title=f"Posterior of {folder.name}")
    for column in rows[0]:
        grid.add_column(column, justify="left" if column == "name" else "right")
    for row in rows[:MAX_PARAMETERS_SHOWN]:
        grid.add_row(*(f"{value:.4g}" if isinstance(value, float) else value or "" for value in row.values()))
    console = Console()
    console.print(grid)
    if len(rows) > MAX_PARAMETERS_SHOWN:
        console.print(
            f"Shown: {MAX_PARAMETERS_SHOWN} of {len(rows):,} parameters; all are in {folder / 'summary.csv'}.",
            soft_wrap=True,
        )
    for line in account(folder):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"Figure: {figure}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _interruptible() -> Any:
    """Ends cleanly on SIGINT and SIGTERM, with all child processes."""

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
