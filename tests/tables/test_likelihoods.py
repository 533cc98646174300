"""Likelihoods of `pt.fit`: against other programs, divided among sites or not, and what is told of their constants."""

import importlib.util
import json
import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import special, stats
from typer.testing import CliRunner

import partita as pt
from docs.pages import ROOT
from partita.cli import app
from partita.errors import InputError
from partita.tables.agreement import agreed
from partita.tables.constants import CUT_POINTS, SCALARS, Constant
from partita.tables.reading import frame_of, sites_of
from partita.tables.spec import Settings

VAGUE = "normal(0, 100)"
FIRST = np.random.default_rng(0)


def accuracy():
    """The cases of the page of accuracy."""
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ACCURACY = accuracy()
FRAME = ACCURACY.simulated()


@pytest.fixture(scope="module")
def choices():
    return pt.fit("choice ~ x + w", FRAME, family="multinomial", sites="site", prior=VAGUE, levels=["a", "b", "c"])


@pytest.fixture(scope="module")
def hazards():
    said = {"family": "piecewise_exponential", "event": "died", "cuts": [60, 150]}
    return pt.fit("days ~ x + w", FRAME, sites="site", prior=VAGUE, **said)


@pytest.fixture(scope="module")
def noises():
    return pt.fit("normal ~ x + w", FRAME, sites="site", prior=VAGUE, noise="inferred", tolerance=1e-13)


def apart(fit, values, errors):
    _, mean, covariance = fit.joint()
    return np.abs((mean - values) / errors).max(), np.abs(np.sqrt(np.diag(covariance)) / errors - 1).max()


@pytest.mark.slow
def test_softmax_has_coefficients_and_probabilities_of_every_label(choices):
    assert choices.names[:4] == ("b:Intercept", "b:x", "b:w", "c:Intercept")
    assert "Reference of choice: a." in choices.notes
    probabilities = choices.predict(FRAME)
    exact = sm.MNLogit(FRAME.choice.map({"a": 0, "b": 1, "c": 2}), ACCURACY.columns(FRAME)).fit(disp=0).predict()
    np.testing.assert_allclose(probabilities, exact, atol=0.01)


@pytest.mark.slow
def test_softmax_tells_of_sites_and_forgets_one(choices):
    told = choices.by_site("b:x")["A"]
    assert set(told) == {"alone", "all", "without"}
    fewer = choices.without("A")
    never = pt.fit(
        "choice ~ x + w", FRAME[FRAME.site != "A"], family="multinomial", sites="site", prior=VAGUE,
        levels=["a", "b", "c"],
    )  # fmt: skip
    sds = np.sqrt(np.diag(never.covariance))
    assert (np.abs(fewer.mean - never.mean) / sds).max() < 5e-3
    assert abs(told["without"][0] - never.mean[1]) < 0.5 * sds[1]


def test_rows_are_split_where_intervals_end(hazards):
    mean, sd = apart(hazards, *ACCURACY.piecewise(FRAME, [60.0, 150.0]))
    assert mean < 0.05
    assert sd < 0.02
    assert hazards.likelihood.ratio == "hazard ratio"
    assert hazards.names[3:] == ("days 60 to 150", "days 150 to …")
    assert "Reference of the intervals: days 0 to 60." in hazards.notes
    assert hazards.notes[0] == "1500 rows of 3 sites."
    expected = hazards.predict(FRAME)
    np.testing.assert_allclose(expected.sum(), FRAME.died.sum(), rtol=0.01)
    later = FRAME.assign(days=FRAME.days * 2)
    assert (hazards.predict(later) > expected).all()


def test_intervals_are_quartiles_of_time_where_none_are_given():
    """To within a tenth of a standard deviation of log time."""
    sites = sites_of(frame_of(FRAME), ["days", "died"], "site")
    found = agreed(Settings("days ~ 1", "piecewise_exponential", event="died").begun, sites).rows
    quartiles = np.log(FRAME.days).quantile([0.25, 0.5, 0.75])
    assert np.abs(np.log(found.cuts) - quartiles).max() < 0.1 * np.log(FRAME.days).std()
    rows = [found.split(site)[0] for site in sites]
    assert sum(site.columns["events of days"].sum() for site in rows) == FRAME.died.sum()
    assert sum(site.columns["exposure of days"].sum() for site in rows) == pytest.approx(FRAME.days.sum())


def test_noise_is_inferred_in_the_unit_of_the_response(noises):
    """Under flat priors noise⁻² is exactly a gamma, with half as much shape as there are degrees of freedom."""
    exact = sm.OLS(FRAME.normal, ACCURACY.columns(FRAME)).fit()
    half, resid = exact.df_resid / 2, exact.resid
    log_noise = (np.log(np.sum(resid**2) / 2) - special.digamma(half)) / 2
    values, errors = ACCURACY.normal(FRAME, True)
    mean, sd = apart(
        noises, np.append(values[:-1], log_noise), np.append(errors[:-1], np.sqrt(special.polygamma(1, half)) / 2)
    )
    assert mean < 0.01
    assert sd < 0.005
    told = noises.coefficients()[-1]
    assert told.name == "noise"
    assert abs(told.mean / np.sqrt(np.mean(resid**2)) - 1) < 0.01
    assert told.low < told.mean < told.high
    assert told.standardised is None
    assert "noise" in repr(noises)


def test_sites_together_are_one_site(noises):
    one = pt.fit("normal ~ x + w", FRAME, prior=VAGUE, noise="inferred", tolerance=1e-13)
    _, mean, covariance = one.joint()
    assert max(apart(noises, mean, np.sqrt(np.diag(covariance)))) < 1e-6
    assert abs(one.result.free_energy - noises.result.free_energy) < 1e-6


@pytest.mark.slow
def test_known_noise_is_least_squares():
    fit = pt.fit("normal ~ x + w", FRAME, prior=VAGUE, noise=4.0)
    mean, sd = apart(fit, *ACCURACY.of(sm.GLM(FRAME.normal, ACCURACY.columns(FRAME)).fit(scale=16)))
    assert mean < 1e-3
    assert sd < 1e-5


def test_without_an_intercept_a_response_is_not_centred():
    fit = pt.fit("normal ~ 0 + x", FRAME, prior=VAGUE)
    exact = sm.OLS(FRAME.normal, FRAME[["x"]]).fit()
    np.testing.assert_allclose(fit.mean, exact.params, rtol=1e-4)


def test_constants_are_told_on_their_own_scale():
    mean, covariance = np.array([0.4, -1.0]), np.diag([0.04, 0.09])
    told = SCALARS.moments([Constant("shape"), Constant("share", special.expit)], mean, covariance, 0.9)
    exact = stats.lognorm(0.2, scale=np.exp(0.4))
    np.testing.assert_allclose(told[0][1:], [exact.mean(), exact.std(), *exact.interval(0.9)], rtol=1e-9)
    np.testing.assert_allclose(told[1][3:], special.expit(-1 + 0.3 * np.array([-1, 1]) * stats.norm.ppf(0.95)))


def test_cut_points_have_the_moments_of_their_draws():
    turn = FIRST.normal(size=(3, 3)) * 0.2
    mean, covariance = np.array([-1.0, 0.3, -0.5]), turn @ turn.T
    draws = FIRST.multivariate_normal(mean, covariance, 400_000)
    cuts = np.cumsum(np.column_stack([draws[:, 0], np.exp(draws[:, 1:])]), axis=1)
    np.testing.assert_allclose(CUT_POINTS.draws((), draws[:5]), cuts[:5])
    told = CUT_POINTS.moments([Constant(name) for name in "abc"], mean, covariance, 0.95)
    np.testing.assert_allclose([row.mean for row in told], cuts.mean(0), atol=5e-3)
    np.testing.assert_allclose([row.sd for row in told], cuts.std(0), rtol=1e-2)


BAD = (
    ({"family": "poisson", "trials": "trials"}, "takes no trials"),
    ({"family": "gaussian", "noise": -1.0}, "noise"),
    ({"family": "gaussian", "noise": "known"}, "learned"),
    ({"family": "binomial", "link": "log"}, "cloglog"),
    ({"family": "binomial", "trials": "site"}, "texts"),
    ({"family": "binomial", "trials": "w"}, "trials are whole numbers"),
    ({"family": "binomial", "trials": "size"}, "size"),
    ({"family": "ordinal", "formula": "grade ~ 0 + x"}, "cut points"),
    ({"family": "ordinal", "formula": "label ~ x"}, "3 to 20"),
    ({"family": "ordinal", "formula": "choice ~ x", "levels": ["a", "b"]}, "list each"),
    ({"family": "multinomial", "formula": "choice ~ x", "levels": ["a", "b", "c", "c"]}, "list each"),
    ({"family": "multinomial", "formula": "x ~ w"}, "labels"),
    ({"family": "gamma", "formula": "zeros ~ x"}, "above 0"),
    ({"family": "beta", "formula": "cost ~ x"}, "below 1"),
    ({"family": "weibull", "formula": "days ~ x", "event": "trials"}, "events are 0 or 1"),
    ({"family": "piecewise_exponential", "formula": "zeros ~ x"}, "above 0"),
    ({"family": "piecewise_exponential", "formula": "days ~ x", "event": "site"}, "events"),
    ({"family": "piecewise_exponential", "formula": "days ~ x", "cuts": [3, 2]}, "rise"),
    ({"family": "piecewise_exponential", "formula": "days ~ x", "cuts": "soon"}, "numbers"),
    ({"family": "student_t", "formula": "choice ~ x"}, "texts"),
)


@pytest.mark.parametrize(("changed", "said"), BAD, ids=[f"{changed['family']} {said}" for changed, said in BAD])
def test_mistakes_are_one_sentence(changed, said):
    given = {"formula": "events ~ x"} | changed
    with pytest.raises(InputError, match=said) as refused:
        pt.fit(given.pop("formula"), FRAME, **given)
    assert "\n" not in str(refused.value)


def test_the_command_takes_what_a_family_needs(tmp_path, hazards):
    path = tmp_path / "patients.csv"
    FRAME.to_csv(path, index=False)
    command = ["fit", "days ~ x + w", str(path), "--family", "piecewise_exponential", "--event", "died"]
    done = CliRunner().invoke(app, [*command, "--cuts", "60,150", "--sites", "site", "--prior", VAGUE, "--json"])
    assert done.exit_code == 0, done.output
    assert [row["name"] for row in json.loads(done.output)["coefficients"]] == list(hazards.names)
    np.testing.assert_allclose([row["mean"] for row in json.loads(done.output)["coefficients"]], hazards.mean)


@pytest.mark.slow
@pytest.mark.parametrize("case", ACCURACY.CASES, ids=lambda case: case.name)
def test_each_likelihood_is_that_of_another_program_and_of_one_site(case):
    """Means within 0.05 sd and sds within 2% of maximum likelihood; three sites are one to 1e-6.

    A constant's mean is not its mode: for a log noise they differ by (p + 1) / 2n, 0.07 sd here.
    """
    frame = FRAME
    said = {"family": case.family, "prior": VAGUE, "tolerance": 1e-13, **case.said}
    fit, one = pt.fit(case.formula, frame, sites="site", **said), pt.fit(case.formula, frame, **said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other, first = case.other(frame), len(fit.names)
    assert fit.result.status is pt.Status.CONVERGED
    mean, sd = ACCURACY.Apart.between(fit, *other, slice(first))
    assert mean < 0.05
    assert sd < 0.02
    mean, sd = ACCURACY.Apart.between(fit, *other)
    assert mean < 0.15
    assert sd < 0.02
    _, pooled, covariance = one.joint()
    assert max(apart(fit, pooled, np.sqrt(np.diag(covariance)))) < 1e-6
    assert abs(fit.result.free_energy - one.result.free_energy) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("case", ACCURACY.CASES, ids=lambda case: case.name)
def test_each_likelihood_does_all_that_fits_do(case):
    """On a small table with weights and an offset, untuned; weights count rows as often."""
    frame = FRAME.head(200).assign(weight=np.arange(200) % 3 * 1.0, known=np.linspace(-0.2, 0.2, 200))
    formula, said = case.formula + " + offset(known)", {"family": case.family, "sites": "site", **case.said}
    fit = pt.fit(formula, frame, weights="weight", **said)
    assert fit.result.status is pt.Status.CONVERGED
    name = next(name for name in fit.names if name.endswith("x"))
    assert set(fit.by_site(name)) == {"A", "B", "C"}
    assert fit.without("A").result.status is pt.Status.CONVERGED
    assert np.isfinite(fit.predict(frame)).all()
    assert fit.joint()[0][: len(fit.names)] == fit.names
    often = frame.loc[frame.index.repeat(frame.weight.astype(int))]
    weighted, repeated = (
        pt.fit(formula, rows, prior=VAGUE, tolerance=1e-10, weights=column, **said)
        for rows, column in ((frame, "weight"), (often, None))
    )
    _, mean, covariance = repeated.joint()
    assert max(apart(weighted, mean, np.sqrt(np.diag(covariance)))) < 1e-2


def test_what_a_case_of_accuracy_gave_is_kept(tmp_path, monkeypatch):
    """Work is done once for the same settings, and anew for others, or where that is asked for."""
    monkeypatch.setattr(ACCURACY, "KEPT", tmp_path)
    done = []
    for about, anew in (({"draws": 1}, False), ({"draws": 1}, False), ({"draws": 2}, False), ({"draws": 2}, True)):
        found = ACCURACY.kept("gaussian (noise=4.0)", about, anew, lambda: done.append(1) or [f"row {len(done)}"])
        assert found == [f"row {len(done)}"]
    assert len(done) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["gaussian_noise_4_0.json"]
