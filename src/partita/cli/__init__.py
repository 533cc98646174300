"""The command line: `partita fit`, `partita demo` and the commands of a federation."""

from pathlib import Path
from typing import Annotated, Literal

import typer
import typer.core

from partita.cli.credentials import credentials
from partita.cli.federation import client, federation, rehearse, result, resume, server, status
from partita.cli.study import drift, forget, update
from partita.errors import exit_with_sentence

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
    """Options without a command."""
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
        Literal["A", "B"], typer.Option(help="A: homogeneous clients. B: heterogeneous in size and labels.")
    ] = "B",
    family: Annotated[
        Literal["mean-field", "full"], typer.Option(help="The posterior's covariance structure.")
    ] = "full",
    communications: Annotated[
        int, typer.Option(min=10, help="The budget of each method, in pairs of messages with one client.")
    ] = 90,
    damping: Annotated[
        float | None,
        typer.Option(
            help="A fixed damping ρ of synchronous and asynchronous PVI; by default it follows the free energy."
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=200, help="Use only this many training rows.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Fit Bayesian logistic regression to Adult, its rows split over ten clients that keep them.

    Compares sequential, synchronous and asynchronous PVI with global VI on all rows and with each client on its own.
    Needs no download.
    """
    from partita.cli.demo import Settings, run_demo

    run_demo(Settings(output, split, family, communications, damping, rows, seed), json)


@app.command()
def fit(
    formula: Annotated[str, typer.Argument(help="Such as 'died ~ age + C(ward) + offset(log(days))'.")],
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    family: Annotated[
        str,
        typer.Option(
            help="gaussian, student_t, bernoulli, probit, binomial, poisson, negative_binomial, zero_inflated_poisson, "
            "zero_inflated_negative_binomial, gamma, beta, ordinal, multinomial, weibull, exponential or "
            "piecewise_exponential."
        ),
    ] = "gaussian",
    sites: Annotated[
        str | None, typer.Option(help="The column that says whose each row is; without it all rows are one site.")
    ] = None,
    prior: Annotated[
        str,
        typer.Option(
            help="The prior of standardised coefficients: normal, student_t, laplace, cauchy, horseshoe, r2d2."
        ),
    ] = "normal(0, 2.5)",
    covariance: Annotated[
        str | None,
        typer.Option(
            help="full, the default up to 500 columns, block, the default beyond, mean-field (the nearest to full), or "
            "mean-field-optimum."
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="A column of row weights.")] = None,
    positive: Annotated[str | None, typer.Option(help="The label of the response that counts as 1.")] = None,
    trials: Annotated[str | None, typer.Option(help="binomial: the column of the number of trials.")] = None,
    event: Annotated[str | None, typer.Option(help="Survival: the column that is 1 where the event was.")] = None,
    link: Annotated[str | None, typer.Option(help="binomial: logit, probit or cloglog.")] = None,
    noise: Annotated[str | None, typer.Option(help="gaussian: learned, inferred, or its known sd.")] = None,
    cuts: Annotated[str | None, typer.Option(help="piecewise_exponential: where intervals end, as 30,90,365.")] = None,
    levels: Annotated[
        str | None,
        typer.Option(help="ordinal: the labels in order, as low,mid,high; multinomial: the reference first."),
    ] = None,
    missing: Annotated[str, typer.Option(help="What to do about missing predictors: drop, mean or multiple.")] = "drop",
    mass: Annotated[float, typer.Option(help="The mass of the intervals.")] = 0.95,
    forest: Annotated[
        str | None, typer.Option(help="A coefficient or category to draw by site, into --output or forest.png.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the fit, from which partita update, forget and drift go on, with fit.json, "
            "coefficients.csv, report.html and forest.png; with --forest a picture."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Fit a formula to a table, the rows of each site kept apart."""
    from partita.cli.fit import run_fit

    run_fit(
        formula,
        file,
        mass,
        json,
        forest,
        output,
        family=family,
        sites=sites,
        prior=prior,
        covariance=covariance,
        weights=weights,
        positive=positive,
        trials=trials,
        event=event,
        link=link,
        noise=noise,
        cuts=cuts,
        levels=levels,
        missing=missing,
    )


@app.command()
def example(
    file: Annotated[Path, typer.Argument(help="The CSV file to write.")] = Path("adult.csv"),
) -> None:
    """Write a table to try things with: the Adult census data, 48,842 rows."""
    from partita.cli.example import write_example

    write_example(file)


federation.registered_commands.extend(credentials.registered_commands)
app.add_typer(federation, name="federation")
for command in (update, forget, drift, rehearse, server, client, status, resume, result):
    app.command()(command)


def main() -> None:
    """Runs the command line."""
    with exit_with_sentence("partita"):
        app()
