"""Commands of a federation: to set it up, rehearse it, run it, and look at it."""

import contextlib
import json as jsons
import signal
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from partita.errors import InputError
from partita.io.names import Turns

__all__ = [
    "client",
    "credentials",
    "federation",
    "init",
    "join",
    "leave",
    "rehearse",
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
    formula: Annotated[str, typer.Argument(help="Such as 'died ~ age + C(ward) + offset(log(days))'.")],
    client: Annotated[list[str], typer.Option(help="The name of a client; repeat it for each.")],
    family: Annotated[str, typer.Option(help="The likelihood: any of `partita fit --help`.")] = "gaussian",
    example: Annotated[
        list[Path] | None,
        typer.Option(help="A CSV or Parquet file in which to look for the formula's columns; repeat it for more."),
    ] = None,
    prior: Annotated[
        str, typer.Option(help="The prior of standardised coefficients, normal(mean, sd).")
    ] = "normal(0, 2.5)",
    covariance: Annotated[
        str, typer.Option(help="full, which automatic is up to 500 columns, mean-field, or mean-field-optimum.")
    ] = "automatic",
    weights: Annotated[str, typer.Option(help="A column of row weights.")] = "",
    positive: Annotated[str, typer.Option(help="The label of the response that counts as 1.")] = "",
    trials: Annotated[str, typer.Option(help="binomial: the column of the number of trials.")] = "",
    event: Annotated[str, typer.Option(help="Survival: the column that is 1 where the event was.")] = "",
    link: Annotated[str, typer.Option(help="binomial: logit, probit or cloglog.")] = "",
    noise: Annotated[str, typer.Option(help="gaussian: learned, inferred, or its known sd.")] = "",
    cuts: Annotated[
        str | None,
        typer.Option(help="piecewise_exponential: where intervals end, as 30,90,365; else clients agree on quartiles."),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(help="ordinal: the labels in order, as low,mid,high; multinomial: the reference first."),
    ] = None,
    missing: Annotated[str, typer.Option(help="What to do about missing predictors: drop or mean.")] = "drop",
    schedule: Annotated[Turns, typer.Option(help="The schedule of clients.")] = "sequential",
    address: Annotated[
        str, typer.Option(help="The server's address. Unless on loopback, certificates and keys are made.")
    ] = "127.0.0.1:9092",
    secure: Annotated[
        bool | None, typer.Option(help="Make certificates and keys; by default unless on loopback.")
    ] = None,
) -> None:
    """Write federation.toml, for review and editing, and a folder to give to each client.

    Clients read the columns that the formula names, and no others. Nothing of an example is copied.
    """
    from partita.cli.fit import listed
    from partita.federation.initialise import initialise
    from partita.tables.spec import Settings

    settings = Settings.given(
        formula,
        family,
        prior,
        missing,
        covariance=covariance,
        weights=weights,
        positive=positive,
        trials=trials,
        event=event,
        link=link,
        noise=noise,
        cuts=listed(cuts),
        levels=listed(levels),
    )
    for path in initialise(folder, client, settings, example or [], address, schedule, secure):
        typer.echo(path)


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
    """Stop asking a client and divide its factor out of the posterior; the encoding of columns stays as it is."""
    _request(folder, name, "retire")
    typer.echo("Columns stay encoded by its sums of round 0 too: for an encoding without them, start a new run.")


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


def rehearse(
    folder: _Folder,
    files: Annotated[list[str], typer.Argument(help="The file of each client, as leeds=leeds.csv york=york.csv.")],
    output: Annotated[
        Path | None, typer.Option(help="A new folder that keeps the run, as the server's does after a real one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Run a federation in this process from its clients' files: the table, and what each client would send."""
    from partita.cli.rehearse import run_rehearsal

    run_rehearsal(folder, files, json, output)


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
    from partita.cli.beginning import begin
    from partita.federation.result import account, draw, shown, summary

    rows = summary(folder)
    figure = draw(folder, rows)
    if json:
        about = {"summary": rows, "account": account(folder), "files": {"figure": str(figure)}}
        typer.echo(jsons.dumps(about, indent=2))
        return
    begin()
    for line in (shown(folder), "", *account(folder), f"Figure: {figure}"):
        typer.echo(line)


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
