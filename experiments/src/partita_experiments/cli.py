"""The command line: `partita-experiment NAME`."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from partita.errors import InputError, exit_with_sentence
from partita_experiments.config import NAMES

STUDIES = ("ep", "hyper", "theory")
"""Experiments that do not compare methods and have a module of their own."""

HELP = f"""Run one of the paper's experiments, and write its table, figures and report.

The experiments are {", ".join(NAMES)}, {" and ".join(STUDIES)}.

It can be interrupted; the same command resumes it. Data are downloaded once, or found under PARTITA_DATA.
"""

app = typer.Typer(
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(no_args_is_help=True, help=HELP)
def experiment(
    name: Annotated[str, typer.Argument(help="Which experiment.")],
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
    """Runs the named experiment; `HELP` is its help text."""
    if name in STUDIES:
        if any(option is not None for option in (seeds, problem, data, solver, workers, config)) or plan:
            raise InputError(f"The experiment {name} takes --output, --quick and --json, and no other option.")
        study = importlib.import_module(f"partita_experiments.{name}")
        study.run(output or Path(f"partita-experiment-{name}{'-quick' if quick else ''}"), quick, json)
        return
    from partita_experiments.experiment import Settings, run_experiment

    settings = Settings(name, output, config, data, solver, seeds, workers, tuple(problem or ()), quick, plan)
    run_experiment(settings, json)


def main() -> None:
    """Runs the command line."""
    with exit_with_sentence("partita-experiment"):
        app()
