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
        str,
        typer.Option(
            help="The prior of standardised coefficients: normal, student_t, laplace, cauchy, horseshoe, r2d2."
        ),
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
        str,
        typer.Option(
            help="The server's host and port, as clients reach them, or folder:/mnt/share where sites exchange files."
        ),
    ] = "127.0.0.1:9092",
) -> None:
    """Write federation.toml, for review and editing, certificate and keys, and a folder to give to each client.

    Clients read the columns that the formula names, and no others. Nothing of an example is copied.
    """
    from partita.cli.fit import listed
    from partita.federation.initialise import initialise
    from partita.io.private import close_to_others
    from partita.tables.spec import Settings

    close_to_others()
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
    for path in initialise(folder, client, settings, example or [], address, schedule):
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
    from partita.io.private import close_to_others

    close_to_others()
    run_rehearsal(folder, files, json, output)


def server(folder: _Folder) -> None:
    """Run a federation's server until the run ends. It can be interrupted and continued with `partita resume`."""
    from partita.federation.running import run_server

    about = _closed(folder)
    typer.echo(f"See the status with `partita status {folder} --web`.")
    with _interruptible():
        typer.echo(run_server(folder, about))
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
    preview: Annotated[bool, typer.Option("--preview", help="Say what would leave, and stop.")] = False,
    least_rows: Annotated[
        int | None, typer.Option(min=1, help="Tell nothing of fewer rows: not below disclosure.rows, the default.")
    ] = None,
    least_cell: Annotated[
        int | None,
        typer.Option(min=1, help="Nor of a level, or other cell, of fewer: not below disclosure.cell, the default."),
    ] = None,
    visits: Annotated[
        int | None, typer.Option(min=1, help="Answer so many tasks of a run at most; by default twice its rounds.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="The file that says what has left and when; by default beside the data.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Begin a new run: forget what was accepted and answered before.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="The server's address from here, such as folder:/media/share.")
    ] = None,
    letter: Annotated[
        Path | None, typer.Option(help="Answer this one letter of a mailbox, which was brought by hand, and stop.")
    ] = None,
    answer: Annotated[Path, typer.Option(help="The folder for the answer to --letter.")] = Path("answers"),
    proxy: Annotated[
        str | None, typer.Option(help="The site's proxy, as http://proxy:8080; by default that of HTTPS_PROXY.")
    ] = None,
    authority: Annotated[
        Path | None, typer.Option(help="A certificate of the site's own, where its proxy inspects what passes.")
    ] = None,
) -> None:
    """Run a client until it is interrupted. It answers the server's tasks; its rows stay on this machine."""
    from partita.federation.client import usable
    from partita.federation.guarded import Owner
    from partita.federation.running import Way, run_client, run_letter

    way = Way(address, proxy, authority)
    about = way.through(_closed(folder))
    limits = about.disclosure.raised(least_rows, least_cell)
    owner = Owner(limits, visits, log, anew)
    if preview:
        return _preview(about, name, data, owner)
    if letter is not None:
        return typer.echo(run_letter(folder, about, name, data, owner, letter, answer))
    try:
        read = f"read {usable(data, about, limits).size} rows of {data.name}."
    except InputError as error:
        if error.public is None or not data.is_file():
            raise
        read = f"{error} The client stays, so that the server is told and waits: correct the file, it is read again."
    typer.echo(f"{name}: {read} Waiting for {about.server.address}; Ctrl-C stops.")
    with _interruptible():
        run_client(folder, about, name, data, owner, way)


def _preview(about: Any, name: str, data: Path, owner: Any) -> None:
    import jax

    from partita.federation.client import Client
    from partita.federation.preview import preview

    jax.config.update("jax_enable_x64", True)
    client = Client(name, about, data, owner.limits)
    client.check()
    for line in preview(about, client, owner.visits):
        typer.echo(line)


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
    from partita.io.private import close_to_others

    close_to_others()
    rows = summary(folder)
    figure = draw(folder, rows)
    if json:
        about = {"summary": rows, "account": account(folder), "files": {"figure": str(figure)}}
        typer.echo(jsons.dumps(about, indent=2))
        return
    begin()
    for line in (shown(folder), "", *account(folder), f"Figure: {figure}"):
        typer.echo(line)


_FILES = (
    *("federation.toml", "ca.*", "server.*", "keys", "clients", "*.log", "*.log.1", "ledger.sqlite*", "result.*"),
    *("summary.csv", "posterior.npz", "answered-*.json", "letters-*.json"),
)
"""What a federation has in its folder, which may hold other things too."""


def _closed(folder: Path) -> Any:
    """The federation in a folder, which nobody else may enter from now on; warns of certificates that end."""
    from partita.federation.certificates import warnings
    from partita.federation.config import load
    from partita.io import private

    about = load(folder)
    private.close_to_others()
    private.tighten(folder, _FILES)
    for sentence in warnings(folder):
        typer.echo(sentence, err=True)
    return about


@contextlib.contextmanager
def _interruptible() -> Any:
    """Ends cleanly on SIGINT and SIGTERM."""

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
