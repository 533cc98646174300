"""Every likelihood of `pt.fit` against maximum likelihood by other programs, against NUTS, and against one site.

`python benchmarks/accuracy.py --page docs/accuracy.md` writes the page. Rows are simulated with a fixed seed, but for
the bundled Adult. The prior is normal(0, 100), as for maximum likelihood there is none. What a case gave is kept in a
file of `benchmarks/results/accuracy`, so that a run that was interrupted goes on where it was; `--anew` begins again.
"""

import argparse
import json
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import statsmodels.api as sm
from scipy import special
from statsmodels.miscmodels.ordinal_model import OrderedModel
from statsmodels.miscmodels.tmodel import TLinearModel
from statsmodels.othermod.betareg import BetaModel

import partita as pt
from partita.io.atomic import write_text

jax.config.update("jax_enable_x64", True)
ROWS, SEED, DRAWS = 1500, 0, 40_000
PRIOR = "normal(0, 100)"
CUTS = [60.0, 150.0]
KEPT = Path(__file__).parent / "results" / "accuracy"

Estimates = tuple[np.ndarray, np.ndarray]
"""Estimates and their standard errors."""


def simulated(rows: int = ROWS, seed: int = SEED) -> pandas.DataFrame:
    """Two covariates, three sites, and a response for each likelihood."""
    rng = np.random.default_rng(seed)
    x, w, site = rng.normal(50, 10, rows), rng.integers(0, 2, rows) * 1.0, rng.choice(["A", "B", "C"], rows)
    eta = 0.5 + 0.05 * (x - 50) - 0.4 * w
    mean, chance, frame = np.exp(eta), special.expit(eta), pandas.DataFrame({"x": x, "w": w, "site": site})
    frame["normal"], frame["robust"] = 20 + 5 * eta + rng.normal(0, 4, rows), 20 + 5 * eta + 3 * rng.standard_t(4, rows)
    frame["trials"] = rng.integers(1, 9, rows)
    frame["label"], frame["events"] = (rng.random(rows) < chance) * 1, rng.binomial(frame.trials, chance)
    frame["hazards"] = rng.binomial(frame.trials, -np.expm1(-np.exp(eta - 1)))
    frame["counts"], frame["spread"] = rng.poisson(mean), rng.negative_binomial(2, 2 / (2 + mean))
    zero = rng.random(rows) < 0.3
    frame["zeros"] = np.where(zero, 0, rng.poisson(2 * mean))
    frame["both"] = np.where(zero, 0, rng.negative_binomial(3, 3 / (3 + 3 * mean)))
    frame["cost"], frame["share"] = 100 * rng.gamma(3, mean / 3), rng.beta(8 * chance, 8 * (1 - chance))
    frame["grade"] = np.digitize(eta + rng.logistic(size=rows), [-1, 0.5, 2])
    logits = np.column_stack([np.zeros(rows), eta, -eta / 2])
    frame["choice"] = np.array(["a", "b", "c"])[(logits + rng.gumbel(size=logits.shape)).argmax(1)]
    time_of, until = 100 * mean * rng.weibull(1.5, rows), rng.exponential(300, rows)
    frame["days"], frame["died"] = np.minimum(time_of, until), (time_of <= until) * 1
    return frame


def columns(frame: pandas.DataFrame) -> np.ndarray:
    return np.column_stack([np.ones(len(frame)), frame.x, frame.w])


def of(result: object, order: slice | list[int] = slice(None)) -> Estimates:
    """Of a result of statsmodels."""
    return np.asarray(result.params).ravel(order="F")[order], np.asarray(result.bse).ravel(order="F")[order]


def logs(found: Estimates, places: list[int]) -> Estimates:
    """The same with some positive parameters on the log scale."""
    values, errors = (np.array(part, dtype=float) for part in found)
    errors[places] = errors[places] / values[places]
    values[places] = np.log(values[places])
    return values, errors


def glm(response: str, family: sm.families.Family, **given: object) -> Callable[[pandas.DataFrame], Estimates]:
    return lambda frame: of(sm.GLM(frame[response], columns(frame), family, **given).fit())


def binomial(response: str, link: object) -> Callable[[pandas.DataFrame], Estimates]:
    def fit(frame: pandas.DataFrame) -> Estimates:
        both = np.column_stack([frame[response], frame.trials - frame[response]])
        return of(sm.GLM(both, columns(frame), sm.families.Binomial(link)).fit())

    return fit


def normal(frame: pandas.DataFrame, inferred: bool) -> Estimates:
    """With the maximum likelihood estimate of the noise."""
    result = sm.OLS(frame.normal, columns(frame)).fit()
    noise = np.sqrt(np.mean(result.resid**2))
    values, errors = result.params, result.bse * noise / np.sqrt(result.scale)
    return (
        (np.append(values, np.log(noise)), np.append(errors, 1 / np.sqrt(2 * len(frame))))
        if inferred
        else (np.asarray(values), np.asarray(errors))
    )


def gamma(frame: pandas.DataFrame) -> Estimates:
    """With the maximum likelihood estimate of the shape, where statsmodels has Pearson's, and observed information."""
    model = sm.GLM(frame.cost, columns(frame), sm.families.Gamma(sm.families.links.Log()))
    ratio = frame.cost / model.fit().fittedvalues
    gap, shape = float(np.mean(ratio - np.log(ratio)) - 1), 1.0
    for _ in range(100):
        slope = 1 / shape - special.polygamma(1, shape)
        shape = np.exp(np.log(shape) - (np.log(shape) - special.digamma(shape) - gap) / (slope * shape))
    values = model.fit().params.to_numpy()
    errors = np.sqrt(np.diag(np.linalg.inv(-model.hessian(values, scale=1 / shape, observed=True))))
    information = len(frame) * (special.polygamma(1, shape) - 1 / shape)
    return np.append(values, np.log(shape)), np.append(errors, 1 / (shape * np.sqrt(information)))


def student(frame: pandas.DataFrame) -> Estimates:
    """Degrees of freedom come before the scale there."""
    values, errors = of(
        TLinearModel(frame.robust, columns(frame)).fit(disp=0, maxiter=5000, maxfun=5000, xtol=1e-8, ftol=1e-10)
    )
    return logs((values[[0, 1, 2, 4, 3]], errors[[0, 1, 2, 4, 3]]), [3, 4])


def exact_hessian(result: object) -> np.ndarray:
    """Of the log likelihood by central differences of its gradient; its own may be that of a search."""
    at, steps = np.asarray(result.params), 1e-5 * np.eye(len(result.params))
    columns = [(result.model.score(at + step) - result.model.score(at - step)) / 2e-5 for step in steps]
    return (np.array(columns) + np.array(columns).T) / 2


def inflated(response: str, model: type, method: str, constants: list[int]) -> Callable[[pandas.DataFrame], Estimates]:
    """The inflation comes first there, and the dispersion last, on its own scale."""

    def fit(frame: pandas.DataFrame) -> Estimates:
        result = model(frame[response], columns(frame)).fit(disp=0, maxiter=5000, method=method, gtol=1e-8)
        found = np.asarray(result.params), np.sqrt(np.diag(np.linalg.inv(-exact_hessian(result))))
        values, errors = (part[[1, 2, 3, *constants]] for part in found)
        return logs((values, errors), [3] if len(constants) == 2 else [])

    return fit


def negative_binomial(frame: pandas.DataFrame) -> Estimates:
    return logs(of(sm.NegativeBinomial(frame.spread, columns(frame)).fit(disp=0, maxiter=5000)), [3])


def beta(frame: pandas.DataFrame) -> Estimates:
    return of(BetaModel(frame.share, columns(frame)).fit(disp=0))


def ordinal(frame: pandas.DataFrame) -> Estimates:
    return of(OrderedModel(frame.grade, columns(frame)[:, 1:], distr="logit").fit(disp=0, method="bfgs", gtol=1e-7))


def multinomial(frame: pandas.DataFrame) -> Estimates:
    return of(sm.MNLogit(frame.choice.map({"a": 0, "b": 1, "c": 2}), columns(frame)).fit(disp=0))


def weibull(frame: pandas.DataFrame) -> Estimates:
    import lifelines

    fitter = lifelines.WeibullAFTFitter().fit(frame[["x", "w", "days", "died"]], "days", "died")
    order = [("lambda_", "Intercept"), ("lambda_", "x"), ("lambda_", "w"), ("rho_", "Intercept")]
    return fitter.params_[order].to_numpy(), fitter.standard_errors_[order].to_numpy()


def piecewise(frame: pandas.DataFrame, cuts: list[float]) -> Estimates:
    """Poisson regression of rows that are split one by one."""
    rows = []
    for x, w, days, died in frame[["x", "w", "days", "died"]].itertuples(index=False):
        for place, (start, end) in enumerate(zip([0, *cuts], [*cuts, np.inf], strict=True)):
            if days > start:
                later = [float(place == k + 1) for k in range(len(cuts))]
                rows.append([died * (days <= end), min(days, end) - start, 1, x, w, *later])
    split = np.array(rows)
    return of(sm.GLM(split[:, 0], split[:, 2:], sm.families.Poisson(), offset=np.log(split[:, 1])).fit())


class Case(NamedTuple):
    """A likelihood, what is said to `pt.fit`, and the same by another program, in the order of `Fit.joint`."""

    formula: str
    family: str
    said: dict[str, object]
    other: Callable[[pandas.DataFrame], Estimates]
    program: str = "statsmodels"

    @property
    def name(self) -> str:
        """The likelihood with what matters of the rest."""
        told = ", ".join(f"{key}={value}" for key, value in self.said.items() if key in ("link", "noise"))
        return f"{self.family} ({told})" if told else self.family


LOGIT, CLOGLOG, PROBIT = sm.families.links.Logit(), sm.families.links.CLogLog(), sm.families.links.Probit()
CASES = [
    Case(
        "normal ~ x + w",
        "gaussian",
        {"noise": 4.0},
        lambda frame: of(sm.GLM(frame.normal, columns(frame)).fit(scale=16)),
    ),
    Case("normal ~ x + w", "gaussian", {"noise": "learned"}, lambda frame: normal(frame, False)),
    Case("normal ~ x + w", "gaussian", {"noise": "inferred"}, lambda frame: normal(frame, True)),
    Case("robust ~ x + w", "student_t", {}, student),
    Case("label ~ x + w", "bernoulli", {}, glm("label", sm.families.Binomial())),
    Case("label ~ x + w", "probit", {}, glm("label", sm.families.Binomial(PROBIT))),
    Case("events ~ x + w", "binomial", {"trials": "trials", "link": "logit"}, binomial("events", LOGIT)),
    Case("events ~ x + w", "binomial", {"trials": "trials", "link": "probit"}, binomial("events", PROBIT)),
    Case("hazards ~ x + w", "binomial", {"trials": "trials", "link": "cloglog"}, binomial("hazards", CLOGLOG)),
    Case("counts ~ x + w", "poisson", {}, glm("counts", sm.families.Poisson())),
    Case("spread ~ x + w", "negative_binomial", {}, negative_binomial),
    Case("zeros ~ x + w", "zero_inflated_poisson", {}, inflated("zeros", sm.ZeroInflatedPoisson, "bfgs", [0])),
    Case(
        "both ~ x + w",
        "zero_inflated_negative_binomial",
        {},
        inflated("both", sm.ZeroInflatedNegativeBinomialP, "bfgs", [4, 0]),
    ),
    Case("cost ~ x + w", "gamma", {}, gamma),
    Case("share ~ x + w", "beta", {}, beta),
    Case("grade ~ x + w", "ordinal", {}, ordinal),
    Case("choice ~ x + w", "multinomial", {"levels": ["a", "b", "c"]}, multinomial),
    Case("days ~ x + w", "weibull", {"event": "died"}, weibull, "lifelines"),
    Case("days ~ x + w", "exponential", {"event": "died"}, lambda frame: piecewise(frame, [])),
    Case(
        "days ~ x + w", "piecewise_exponential", {"event": "died", "cuts": CUTS}, lambda frame: piecewise(frame, CUTS)
    ),
]


class Apart(NamedTuple):
    """How far a fit is from another one: largest |difference of means| / sd, and largest relative difference of sds."""

    mean: float
    sd: float

    @classmethod
    def between(cls, fit: pt.Fit, values: np.ndarray, errors: np.ndarray, which: slice = slice(None)) -> "Apart":
        _, mean, covariance = fit.joint()
        means, sds = np.abs((mean - values) / errors)[which], np.abs(np.sqrt(np.diag(covariance)) / errors - 1)[which]
        return cls(float(means.max()), float(sds.max())) if len(means) else cls(np.nan, np.nan)

    def __str__(self) -> str:
        if np.isnan(self.mean):
            return "|"
        return (
            f"{self.mean:.1g} | {self.sd:.1%}"
            if self.mean >= 1e-4 or self.sd >= 1e-4
            else f"{self.mean:.0e} | {self.sd:.0e}"
        )


def drawn(fit: pt.Fit, draws: int = DRAWS, seed: int = SEED) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and sd of each parameter by NUTS, in coordinates in which q is standard normal, and the least ESS.

    The exact posterior of the model, whose density is tested against SciPy's; a learned noise is that of the fit.
    """
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    model, pooled = fit.result.posterior.model, fit.partition.pooled().shards[0]
    q, prior = fit.result.posterior.q, fit.prior
    start, root = np.asarray(q.mean), np.linalg.cholesky(np.asarray(q.covariance))

    def potential(z: jax.Array) -> jax.Array:
        theta = start + root @ z
        rows = jax.vmap(model.log_density, in_axes=(None, 0))(theta, pooled.data)
        return -(pooled.weights @ rows) - prior.log_prob(theta)

    chain = MCMC(NUTS(potential_fn=potential, dense_mass=False), num_warmup=500, num_samples=draws, progress_bar=False)
    chain.run(jax.random.key(seed), init_params=jnp.zeros(len(start)))
    theta = start + np.asarray(chain.get_samples()) @ root.T
    told = theta @ fit.units.turn.T + fit.units.shift
    return told.mean(0), told.std(0), float(np.min(effective_sample_size(np.asarray(told)[None])))


HEAD = (
    "| family | other program | parameters | rows | ML: mean | sd | constants: mean | sd | NUTS: mean | sd "
    "| one site: mean | sd | nats | ESS | seconds: fit | other | NUTS |\n" + "|---|---|" + "--:|" * 15
)


def compared(case: Case, frame: pandas.DataFrame, draws: int = DRAWS) -> str:
    """A row of the table: a case by `pt.fit` in three sites and in one, by the other program, and by NUTS."""
    times = [time.perf_counter()]
    said = {"family": case.family, "prior": PRIOR, "tolerance": 1e-13, **case.said}
    fit = pt.fit(case.formula, frame, sites="site", **said)
    times.append(time.perf_counter())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = case.other(frame)
    times.append(time.perf_counter())
    mean, sd, effective = drawn(fit, draws)
    times.append(time.perf_counter())
    one = pt.fit(case.formula, frame, **said)
    _, pooled, spread = one.joint()
    first = len(fit.names)
    rows = [Apart.between(fit, *other, which) for which in (slice(first), slice(first, None))]
    rows += [Apart.between(fit, *pair) for pair in ((mean, sd), (pooled, np.sqrt(np.diag(spread))))]
    nats = abs(fit.result.free_energy - one.result.free_energy)
    told = [case.name, case.program, len(mean), len(frame), *rows, f"{nats:.0e}", f"{effective:,.0f}"]
    return "| " + " | ".join(map(str, [*told, *(f"{spent:.1f}" for spent in np.diff(times))])) + " |"


def patients(rows: int = 800) -> pandas.DataFrame:
    """As many men as women, nearly, at three hospitals."""
    rng = np.random.default_rng(SEED)
    frame = pandas.DataFrame({"age": rng.normal(60, 12, rows), "bmi": rng.normal(26, 4, rows)})
    frame["sex"], frame["hospital"] = rng.choice(["female", "male"], rows), rng.choice(["Hull", "Leeds", "York"], rows)
    risk = -0.4 + 0.03 * (frame.age - 60) + 0.24 * (frame.sex == "male")
    return frame.assign(died=(rng.random(rows) < special.expit(risk)) * 1)


def every_level(frame: pandas.DataFrame, family: type) -> tuple[float, float, float]:
    """Mean and sd of `sex=male` a standard deviation, and the sd of men less women, with a column for each level.

    All columns are standardised, the prior is normal(0, 1), and rows of hospitals are kept apart.
    """
    levels = [(frame.sex == level) * 1.0 for level in ("female", "male")]
    x = np.column_stack([frame.age, frame.bmi, *levels])
    unit = x.std(0)
    x = np.column_stack([np.ones(len(x)), (x - x.mean(0)) / unit])
    parts = pt.split(
        pt.Table(x, frame.died.to_numpy(float)), [np.flatnonzero(frame.hospital == h) for h in set(frame.hospital)]
    )
    prior = family.standard_normal(5)
    q = pt.run(
        pt.methods.sequential(), pt.LogisticRegression(), prior, parts, monitor=pt.Monitor(progress=False)
    ).posterior.q
    covariance = np.asarray(pt.families.gaussian.gaussian(q).covariance)
    less = np.array([0, 0, 0, -1, 1]) / np.append(1, unit)
    return float(q.mean[4]), float(np.sqrt(covariance[4, 4])), float(np.sqrt(less @ covariance @ less))


def men_and_women() -> list[str]:
    """Men against women in made-up rows: with a column for each level, by default, and by statsmodels."""
    frame = patients()
    lines = ["| fit | `sex=male`, a standard deviation | men less women |", "|---|--:|--:|"]
    for label, family in (("independent", pt.MeanFieldGaussian), ("full covariance", pt.FullGaussian)):
        mean, sd, less = every_level(frame, family)
        lines.append(f"| a column for each level, {label} | {mean:.3f} ± {sd:.3f} | ± {less:.3f} |")
    formula = 'died ~ age + bmi + C(sex, reference="female")'
    fit = pt.fit(formula, frame, family="bernoulli", sites="hospital")
    row = next(row for row in fit.coefficients() if "male" in row.name)
    exact = sm.Logit.from_formula("died ~ age + bmi + sex", frame).fit(disp=0)
    name = "sex[T.male]"
    return [
        *lines,
        f"| `pt.fit` | | {row.mean:.3f} ± {row.sd:.3f} |",
        f"| statsmodels | | {exact.params[name]:.3f} ± {exact.bse[name]:.3f} |",
    ]


def adult(rows: int = 4000) -> list[str]:
    """Men against women in Adult: the coefficient by default, with independent coefficients, and by statsmodels."""
    train = pt.datasets.adult_frames().train
    frame = pandas.DataFrame({name.replace("-", "_"): values[:rows] for name, values in train.columns.items()})
    frame = frame.assign(rich=train.y[:rows], site=np.arange(rows) % 3)
    terms = "age + education_num + hours_per_week + relationship"
    lines = ["| fit | mean | sd |", "|---|--:|--:|"]
    for label, said in (("`pt.fit`", {}), ('`covariance="mean-field"`', {"covariance": "mean-field"})):
        fit = pt.fit(
            f'rich ~ {terms} + C(sex, reference="Female")', frame, family="bernoulli", sites="site", prior=PRIOR, **said
        )
        row = next(row for row in fit.coefficients() if "Male" in row.name)
        lines.append(f"| {label} | {row.mean:.3f} | {row.sd:.3f} |")
    exact = sm.Logit.from_formula(f"rich ~ {terms} + sex", frame).fit(disp=0)
    return [*lines, f"| statsmodels | {exact.params['sex[T.Male]']:.3f} | {exact.bse['sex[T.Male]']:.3f} |"]


def kept(name: str, about: dict[str, object], anew: bool, work: Callable[[], list[str]]) -> list[str]:
    """What a piece of work gives, from its file if it was done before with the same settings."""
    path = KEPT / (re.sub(r"\W+", "_", name).strip("_") + ".json")
    if path.exists() and not anew:
        found = json.loads(path.read_text())
        if found["about"] == about:
            return list(found["lines"])
    lines = work()
    write_text(path, json.dumps({"about": about, "lines": lines}, indent=1) + "\n")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="families, or cases by their names in the table; all by default")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--anew", action="store_true", help="whether what was kept of cases is not looked at")
    parser.add_argument("--page", type=Path, help="the page whose tables are replaced")
    given = parser.parse_args()
    about = {"rows": given.rows, "draws": given.draws, "seed": SEED, "version": pt.__version__}
    frame, lines = simulated(given.rows), []
    print(HEAD)
    for place, case in enumerate(CASES):
        if not given.only or {case.family, case.name} & set(given.only):
            print(f"{place + 1} of {len(CASES)}: {case.name}", file=sys.stderr, flush=True)
            settings = about | {"formula": case.formula, "said": case.said}
            lines += kept(case.name, settings, given.anew, lambda case=case: [compared(case, frame, given.draws)])
            print(lines[-1], flush=True)
    if given.only:
        return
    beside = {name: kept(name, about, given.anew, work) for name, work in (("adult", adult), ("sex", men_and_women))}
    print("\n".join(line for table in beside.values() for line in ["", *table]))
    if given.page:
        text = given.page.read_text()
        for mark, table in {"table": [HEAD, *lines], **beside}.items():
            before, rest = text.split(f"<!-- {mark} -->\n", 1)
            text = f"{before}<!-- {mark} -->\n" + "\n".join(table) + "\n\n<!-- end" + rest.split("<!-- end", 1)[1]
        given.page.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
