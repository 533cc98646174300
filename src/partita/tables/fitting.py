"""`fit`: a formula and a table in, a posterior in the table's own units out."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import enable_x64

from partita.data.disclosure import Limits
from partita.data.shard import Partition
from partita.engines import Engine, LocalEngine
from partita.errors import SettingsError
from partita.inputs import check_kind, check_whole
from partita.server.monitor import Monitor
from partita.server.run import run
from partita.tables.agreement import agreed
from partita.tables.fit import Fit
from partita.tables.imputation import missing_in
from partita.tables.multiple import ImputedFit
from partita.tables.policies import policy
from partita.tables.reading import Site, frame_of, sites_of
from partita.tables.sources import source_of
from partita.tables.spec import Settings, Spec

__all__ = ["fit"]

_QUIET = Monitor(progress=False)


def fit(
    formula: str,
    data: Any,
    *,
    family: str = "gaussian",
    sites: str | None = None,
    prior: str | Mapping[str, str] = "normal(0, 2.5)",
    covariance: str | None = None,
    weights: str | None = None,
    positive: str | None = None,
    trials: str | None = None,
    event: str | None = None,
    link: str | None = None,
    noise: str | float | None = None,
    cuts: Sequence[float] | None = None,
    levels: Sequence[str] | None = None,
    missing: str = "drop",
    rounds: int = 100,
    tolerance: float = 1e-6,
    engine: Callable[[Partition], Engine] | None = None,
    imputations: int = 10,
    limits: Limits | None = None,
    seed: int = 0,
) -> Fit | ImputedFit:
    """Fits a formula to a table, the rows of each site kept apart.

    Args:
        formula: such as "died ~ age + C(sex) + bs(bmi, df=4) + offset(log(days)) + (1 | ward)".
        data: a data frame (pandas, polars, pyarrow, DuckDB), a mapping of columns, or the path of a file.
        family: the likelihood, one of `LIKELIHOODS`.
        sites: the column that says whose each row is; without it all rows are one site.
        prior: of the coefficients of standardised columns, such as "normal(0, 2.5)", "student_t(3, 0, 2.5)",
            "horseshoe(0.1)", "r2d2()" or "normal(0, half_normal(1))", or one for each of some columns,
            {"age": "laplace(0, 1)", "": "horseshoe(0.1)"}, with "" for all others; the intercept's is normal(0, 10), or
            wider if this one is, unless it is named. For a Gaussian response in units of its sd.
        covariance: "full", the default up to 500 columns, "block", the default beyond, which ignores correlation
            across blocks of about 200 columns, or "mean-field", whose sds are too small where columns are correlated:
            up to 500 columns the nearest such posterior to that of "full", beyond, and with "mean-field-optimum", the
            one of highest free energy, which takes more rounds and smaller messages.
        weights: a column of row weights.
        positive: the label of a binary response that counts as 1.
        trials: of a binomial response, the column of the number of trials.
        event: of a time, the column that says whether the event was then (1) or had not been by then (0).
        link: of a binomial response, "logit", the default, "probit" or "cloglog".
        noise: of a Gaussian response, "learned", the default, "inferred" with the coefficients, or its known sd.
        cuts: where the intervals of a piecewise exponential end; quartiles of time by default.
        levels: the labels of an ordinal response in their order, or of a multinomial one with the reference first.
        missing: what is done about missing predictors: "drop" their rows, take the "mean" and mark it, or draw them
            several times, "multiple"; a row without response, offset or weight is dropped in any case.
        rounds: how many visits of each site at most.
        tolerance: how many nats of KL every site's last answer may lie from the posterior when a fit has converged.
        engine: makes the engine that runs the sites, such as `lambda rows: DaskEngine(cluster, rows)`; without it they
            run in this process.
        imputations: how many times missing values are drawn, at least 5.
        limits: on what sites disclose when they agree on the design: `Limits(rows=10, cell=5)` are the default of a
            federation; None is no limit.
        seed: of these draws.

    Returns:
        The fit: print it, or ask for `coefficients`, `by_site`, `predict`, `without`; an `ImputedFit` where missing
        values were drawn.

    """
    check_whole("number of rounds", rounds)
    if sites is not None:
        check_kind("setting sites", sites, str, "give a name", name="a text")
    chosen = policy(missing)
    settings = Settings.given(
        formula,
        family,
        prior,
        chosen.completed_as,
        covariance=covariance,
        weights=weights,
        positive=positive,
        trials=trials,
        event=event,
        link=link,
        noise=noise,
        cuts=cuts,
        levels=levels,
    )
    there, optional = LocalEngine if engine is None else engine, settings.predictors if chosen.keeps else frozenset()
    rows = tuple(sites_of(frame_of(data), settings.columns, sites, optional))
    tables = chosen.completed(rows, imputations, seed)
    spec = Spec(settings, agreed(settings.begun, tables[0], limits))
    fits = tuple(_fitted(rounds, tolerance, there, spec, table) for table in tables)
    if chosen.draws:
        return ImputedFit.of(fits, sum((Counter(missing_in(site)) for site in rows), Counter()))
    return dataclasses.replace(fits[0], sources=source_of(data, sites or ""))


def _fitted(
    rounds: int, tolerance: float, engine: Callable[[Partition], Engine], spec: Spec, rows: tuple[Site, ...]
) -> Fit:
    """The fit of a spec to the rows of sites, which the engine runs."""
    with enable_x64(True):
        partition = spec.partition(rows)
        result = run(
            spec.method(),
            spec.model(),
            spec.prior(),
            engine=_made(engine, partition),
            rounds=rounds,
            tolerance=tolerance,
            monitor=_QUIET,
        )
        return Fit(spec, rows, partition, result)


def _made(engine: Callable[[Partition], Engine], partition: Partition) -> Engine:
    """The engine of these rows."""
    try:
        made: Any = engine(partition)
    except Exception as error:  # a user's function may raise anything
        made = error
    if not isinstance(made, Engine):
        why = f" ({made!r:.100})" if isinstance(made, Exception) else ""
        raise SettingsError(
            f"The engine must be a function that makes one of a partition{why}: give one such as LocalEngine."
        )
    return made
