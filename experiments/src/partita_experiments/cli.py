"""The command line: `partita-experiment NAME`, `partita-experiment report NAME` and `partita-experiment merge`."""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from partita.errors import InputError, exit_with_sentence, unknown
from partita_experiments.config import NAMES, TABLED

STUDIES = ("ep", "hyper", "modes", "theory", *TABLED)
"""Experiments that do not compare methods and have a module of their own."""

HELP = """Run one of the paper's experiments, and write its table, figures and report.

An experiment can be interrupted; the same command resumes it. Data are downloaded once, or found under PARTITA_DATA.
"""


class _Experiments(TyperGroup):
    """Commands that name the experiments where a name is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # newer versions of typer have a click of their own
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown("experiment", args[0], (*NAMES, *STUDIES))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Experiments,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Output = Annotated[Path | None, typer.Option(help="The folder for results; by default named after the run.")]
Quick = Annotated[bool, typer.Option("--quick", help="A smoke run in seconds, without downloads.")]
Config = Annotated[Path | None, typer.Option(help="A configuration of your own instead of the one that comes along.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _comparison(name: str) -> Callable[..., None]:
    """The command of an experiment that compares methods."""

    def command(
        output: Output = None,
        quick: Quick = False,
        seeds: Annotated[int | None, typer.Option(min=1, help="How many random initialisations.")] = None,
        problem: Annotated[
            list[str] | None, typer.Option(help='Only this problem, such as "adult B"; may be repeated.')
        ] = None,
        data: Annotated[str | None, typer.Option(help="Another data set, such as mimic for mortality.")] = None,
        solver: Annotated[
            str | None, typer.Option(help="How clients solve, such as authors for the paper's Adam.")
        ] = None,
        workers: Annotated[int | None, typer.Option(min=1, help="How many processes; by default one per core.")] = None,
        config: Config = None,
        plan: Annotated[
            bool, typer.Option("--plan", help="Print what is left to run and how long it takes at most, and stop.")
        ] = False,
        json: Json = False,
    ) -> None:
        from partita_experiments.experiment import Settings, run_experiment

        settings = Settings(name, output, config, data, solver, seeds, workers, tuple(problem or ()), quick, plan)
        run_experiment(settings, json)

    return command


def _study(name: str) -> Callable[..., None]:
    """The command of a study, which has a module of its own."""

    def command(output: Output = None, quick: Quick = False, json: Json = False) -> None:
        study = importlib.import_module(f"partita_experiments.{name}")
        study.run(output or Path(f"partita-experiment-{name}{'-quick' if quick else ''}"), quick, json)

    return command


def _add(names: Iterable[str], made: Callable[[str], Callable[..., None]]) -> None:
    for name in names:
        app.command(name, help=f"Run the experiment {name}.")(made(name))


_add(NAMES, _comparison)
_add(STUDIES, _study)


@app.command()
def report(
    name: Annotated[
        str | None, typer.Argument(help="Which experiment; without one, those of all tables in this folder and below.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Its table of results; by default in the folder of its results.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The folder for report and figures; by default the table's.")
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Write an experiment's report and figures again from its table, without running anything."""
    from partita_experiments import experiment
    from partita_experiments.store import FILE

    if name is None:
        if table or output or config:
            raise InputError("Options without an experiment: name the one whose report is to be written.")
        experiment.report_all(Path(), json)
        return
    if name not in (*NAMES, *TABLED):
        raise unknown("experiment with a table", name, (*NAMES, *TABLED))
    experiment.report_experiment(name, table or Path(f"partita-experiment-{name}") / FILE, config, output, json)


@app.command()
def merge(
    output: Annotated[Path, typer.Argument(help="The table to write.")],
    tables: Annotated[list[Path], typer.Argument(help="Tables of one experiment; of two results the later counts.")],
) -> None:
    """Merge tables of results, such as those of several machines."""
    from partita_experiments.experiment import merge_experiments

    merge_experiments(tables, output)


def main() -> None:
    """Runs the command line."""
    with exit_with_sentence("partita-experiment"):
        app()
