"""The command line: `partita demo`, `partita experiment`, and the commands of a federation."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
import typer.core

from partita.cli.federation import client, federation, result, resume, server, status
from partita.errors import InputError

_STUDIES = ("ep", "hyper")
"""Experiments that are no table of methods: modules of their own."""

typer.core.HAS_RICH = False
"""Help is plain text: rich takes longer to import than all the rest of it, and typer would escape brackets for it."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows.",
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Holds the options that belong to no command."""
    if version:
        from partita import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="The folder for the figure, the posterior and its summary.")] = Path(
        "partita-demo"
    ),
    split: Annotated[
        Literal["A", "B"], typer.Option(help="A: clients alike. B: clients unlike in size and labels.")
    ] = "B",
    family: Annotated[
        Literal["mean-field", "full"], typer.Option(help="Whether the posterior has covariances.")
    ] = "mean-field",
    communications: Annotated[
        int, typer.Option(min=10, help="The budget of each method, in pairs of messages with one client.")
    ] = 120,
    damping: Annotated[
        float, typer.Option(help="The damping ρ of synchronous and asynchronous PVI, above 0 and at most 1.")
    ] = 0.2,
    rows: Annotated[int | None, typer.Option(min=200, help="Use so many training rows only.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Fit Bayesian logistic regression to Adult, its rows split over ten clients that keep them.

    Sequential, synchronous and asynchronous PVI stand beside global VI, which sees all rows at once, and beside each
    client alone. Needs no download.
    """
    from partita.cli.demo import Settings, run_demo

    run_demo(Settings(output, split, family, communications, damping, rows, seed), json)


@app.command()
def experiment(
    name: Annotated[
        str,
        typer.Argument(
            help="uci, mortality, heart, mnist-homogeneous, mnist-early-stopping, mnist-damping, mnist-inhomogeneous, "
            "mnist-ablation, digits, ep or hyper."
        ),
    ],
    output: Annotated[Path | None, typer.Option(help="The folder for results; by default named after the run.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run in seconds, without downloads.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many random initialisations.")] = None,
    problem: Annotated[
        list[str] | None, typer.Option(help='Only this problem, such as "adult B"; may be repeated.')
    ] = None,
    data: Annotated[str | None, typer.Option(help="Another data set, such as mimic for mortality.")] = None,
    solver: Annotated[str | None, typer.Option(help="How clients solve, such as authors for the paper's Adam.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many processes; by default one per core.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A configuration of your own instead of the one that comes along.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what is left to run and how long it takes at most, and stop.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one of the paper's experiments, and write its table, figures and report.

    Interrupt it as you like: the same command goes on. Data are downloaded once, or found under PARTITA_DATA.
    """
    if name in _STUDIES:
        if any(option is not None for option in (seeds, problem, data, solver, workers, config)) or plan:
            raise InputError(f"The experiment {name} takes --output, --quick and --json, and no other option.")
        study = importlib.import_module(f"partita.experiments.{name}")
        study.run(output or Path(f"partita-experiment-{name}{'-quick' if quick else ''}"), quick, json)
        return
    from partita.cli.experiment import Settings, run_experiment

    settings = Settings(name, output, config, data, solver, seeds, workers, tuple(problem or ()), quick, plan)
    run_experiment(settings, json)


app.add_typer(federation, name="federation")
for command in (server, client, status, resume, result):
    app.command()(command)


def main() -> None:
    """Runs the command line; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        typer.echo(f"partita: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(
            f"partita: {error.filename or 'a file'} cannot be used ({error.strerror}): choose another place.", err=True
        )
        sys.exit(2)
