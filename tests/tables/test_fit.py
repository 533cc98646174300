"""Fits of formulas: against statsmodels, against fits that never had a site, and what they say of themselves."""

import json

import jax
import numpy as np
import polars
import pytest
import statsmodels.api as sm
from typer.testing import CliRunner

import partita as pt
from docs.pages import ROOT, blocks
from partita.cli import app
from partita.errors import InputError
from support.patients import patients

VAGUE = "normal(0, 100)"


FRAME = patients(900, seed=0)
REFERENCE = {
    "died ~ age * sex": ("bernoulli", sm.families.Binomial(), None),
    "died ~ age + sex": ("probit", sm.families.Binomial(sm.families.links.Probit()), None),
    "visits ~ age + sex + offset(log(days))": ("poisson", sm.families.Poisson(), np.log(FRAME.days)),
    "pressure ~ age + sex": ("gaussian", sm.families.Gaussian(), None),
}


@pytest.fixture(scope="module")
def fitted():
    return {
        text: pt.fit(text, FRAME, family=family, sites="hospital", prior=VAGUE)
        for text, (family, _, _) in REFERENCE.items()
    }


@pytest.mark.parametrize("text", REFERENCE)
def test_coefficients_are_those_of_maximum_likelihood_under_a_vague_prior(text, fitted):
    """Means within 0.05 sd, and sds within 2%: what is left is the posterior's skewness."""
    _, family, offset = REFERENCE[text]
    plain = text.split(" + offset")[0]
    expected = sm.GLM.from_formula(plain, FRAME, family=family, offset=offset).fit()
    found = {row.name: row for row in fitted[text].coefficients()}
    assert list(found) == list(fitted[text].names)
    assert set(found) == set(expected.params.index)
    for name, row in found.items():
        assert abs(row.mean - expected.params[name]) < 0.05 * expected.bse[name], name
        assert abs(row.sd / expected.bse[name] - 1) < 0.02, name


def test_ratios_are_exponentials_of_coefficients_and_their_intervals(fitted):
    for row in fitted["died ~ age * sex"].coefficients(0.9):
        np.testing.assert_allclose(row.ratio, np.exp([row.mean, row.low, row.high]))
    assert all(row.ratio is None for row in fitted["pressure ~ age + sex"].coefficients())


def test_a_fit_in_one_site_is_the_same(fitted):
    one = pt.fit("died ~ age * sex", FRAME, family="bernoulli", prior=VAGUE)
    three = fitted["died ~ age * sex"]
    sds = np.sqrt(np.diag(three.covariance))
    assert np.abs(one.mean - three.mean).max() < 1e-2 * sds.min() + 1e-2 * np.abs(one.mean).max() * 1e-3
    np.testing.assert_allclose(np.sqrt(np.diag(one.covariance)), sds, rtol=1e-3)


def test_without_a_site_it_is_the_fit_that_never_had_it(fitted):
    """On the same standardised columns: the scales were agreed on with the site."""
    text = "died ~ age * sex"
    fewer = fitted[text].without("Hull")
    never = pt.fit(text, FRAME[FRAME.hospital != "Hull"], family="bernoulli", sites="hospital", prior=VAGUE)
    sds = np.sqrt(np.diag(never.covariance))
    assert (np.abs(fewer.mean - never.mean) / sds).max() < 1e-3
    np.testing.assert_allclose(np.sqrt(np.diag(fewer.covariance)), sds, rtol=1e-3)
    assert [site.name for site in fewer.sites] == ["Leeds", "York"]


def test_each_site_alone_and_all_without_it_follow_from_the_factors(fitted):
    """For a Gaussian response factors are exact likelihoods, at the noise that all sites have learned."""
    fit = fitted["pressure ~ age + sex"]
    found = fit.by_site("age")
    assert list(found) == ["Hull", "Leeds", "York"]
    noise = float(fit.result.posterior.model.noise) * fit.spec.response.sd
    for name, told in found.items():
        for label, rows in (("alone", FRAME[FRAME.hospital == name]), ("without", FRAME[FRAME.hospital != name])):
            exact = sm.OLS.from_formula("pressure ~ age + sex", rows).fit()
            np.testing.assert_allclose(told[label][0], exact.params["age"], rtol=1e-4)
            np.testing.assert_allclose(told[label][1], exact.bse["age"] * noise / np.sqrt(exact.scale), rtol=1e-3)
        assert told["all"] == (pytest.approx(fit.mean[1]), pytest.approx(np.sqrt(fit.covariance[1, 1])))


@pytest.mark.parametrize("text", REFERENCE)
def test_predictions_have_the_units_of_the_response(text, fitted):
    _, family, offset = REFERENCE[text]
    plain = text.split(" + offset")[0]
    expected = sm.GLM.from_formula(plain, FRAME, family=family, offset=offset).fit().fittedvalues
    np.testing.assert_allclose(fitted[text].predict(FRAME.drop(columns=plain.split(" ~ ")[0])), expected, rtol=0.02)


def test_predictions_are_missing_where_values_are(fitted):
    some = FRAME.head(4).copy()
    some.loc[1, "age"] = np.nan
    np.testing.assert_array_equal(np.isnan(fitted["died ~ age * sex"].predict(some)), [False, True, False, False])


def test_weights_count_rows_as_often():
    weighted = pt.fit("pressure ~ age", FRAME, weights="weight", prior=VAGUE)
    often = FRAME.loc[FRAME.index.repeat(FRAME.weight.astype(int))]
    expected = sm.OLS.from_formula("pressure ~ age", often).fit()
    np.testing.assert_allclose(weighted.mean, expected.params[["Intercept", "age"]], rtol=1e-3)
    np.testing.assert_allclose(np.sqrt(np.diag(weighted.covariance)), expected.bse, rtol=2e-2)


def test_labels_rows_and_references_are_told():
    frame = FRAME.assign(died=np.where(FRAME.died == 1, "Y", "N"))
    frame.loc[:4, "age"] = np.nan
    fit = pt.fit("died ~ age + sex", frame, family="bernoulli", sites="hospital")
    text = repr(fit)
    for said in (
        "895 rows of 3 sites, 5 rows with missing values dropped",
        "Reference of sex: f",
        "'Y' where it counts as 1",
    ):
        assert said in text
    other = pt.fit("died ~ age + sex", frame, family="bernoulli", sites="hospital", positive="N")
    np.testing.assert_allclose(other.mean, -fit.mean, atol=1e-4)


def test_separation_is_told():
    frame = FRAME.assign(died=(FRAME.sex == "m").astype(int))
    assert any(
        "sex[T.m]" in note and "separation" in note for note in pt.fit("died ~ sex", frame, family="bernoulli").notes
    )


def test_a_rare_outcome_is_not_pulled_towards_one_half():
    """Three deaths among 3,000: a prior of sd 2.5 for the intercept would move it by half its sd."""
    frame = {"died": (np.arange(3000) < 3).astype(float)}
    default, vague = (pt.fit("died ~ 1", frame, family="bernoulli", prior=prior) for prior in ("normal(0, 2.5)", VAGUE))
    assert abs(default.mean[0] - vague.mean[0]) < 0.1 * vague.coefficients()[0].sd


def test_mean_field_is_told_where_it_misleads():
    frame = FRAME.assign(years=FRAME.age + np.random.default_rng(1).normal(0, 3, len(FRAME)))
    formula = "pressure ~ age + years"
    told = pt.fit(formula, frame, covariance="mean-field").notes[-1]
    assert "age" in told
    assert 'covariance="full"' in told
    assert "full covariance" not in " ".join(pt.fit(formula, frame).notes)


def test_double_precision_is_used_and_the_callers_is_kept():
    assert jax.config.read("jax_enable_x64")
    with jax.enable_x64(False):
        fit = pt.fit("pressure ~ age + sex", FRAME, sites="hospital", prior=VAGUE)
        assert not jax.config.read("jax_enable_x64")
    exact = sm.OLS.from_formula("pressure ~ age + sex", FRAME).fit()
    np.testing.assert_allclose(fit.mean[1], exact.params["age"], rtol=1e-4)


def columns(frame):
    return {name: frame[name].to_list() for name in frame.columns}


@pytest.mark.parametrize(
    "convert", [lambda frame: polars.DataFrame(columns(frame)), columns], ids=["polars", "mapping"]
)
def test_tables_of_other_libraries_give_the_same(convert, fitted):
    other = pt.fit("pressure ~ age + sex", convert(FRAME), sites="hospital", prior=VAGUE)
    np.testing.assert_array_equal(other.mean, fitted["pressure ~ age + sex"].mean)


BAD = (
    ({"formula": "died ~ height"}, "height"),
    ({"formula": "died ~ died + age"}, "right of ~"),
    ({"family": "cauchy"}, "cauchy"),
    ({"prior": "normal(0)"}, "normal"),
    ({"prior": "normal(0, -1)"}, "above 0"),
    ({"prior": 3}, "normal"),
    ({"prior": "normal(1.2.3, 1)"}, "normal"),
    ({"sites": "town"}, "town"),
    ({"weights": "sex"}, "weights"),
    ({"covariance": "diagonal"}, "diagonal"),
    ({"positive": "yes"}, "positive"),
    ({"data": 3}, "not a table"),
    ({"data": "nowhere.csv"}, "nowhere.csv"),
    ({"data": "table.xlsx"}, "neither"),
    ({"data": FRAME.head(0)}, "no rows"),
    ({"formula": "hospital ~ age"}, "two are needed"),
    ({"formula": "visits ~ age"}, "labels are 0 or 1"),
    ({"formula": "sex ~ age", "family": "poisson"}, "texts"),
    ({"formula": "pressure ~ age", "family": "poisson"}, "counts"),
    ({"data": FRAME.assign(age=np.nan)}, "missing"),
)


@pytest.mark.parametrize(("changed", "said"), BAD, ids=[said for _, said in BAD])
def test_mistakes_are_one_sentence(changed, said):
    given = {"formula": "died ~ age", "data": FRAME.head(50), "family": "bernoulli"} | changed
    with pytest.raises(InputError, match=said) as refused:
        pt.fit(given.pop("formula"), given.pop("data"), **given)
    assert "\n" not in str(refused.value)


def test_the_command_prints_the_table_or_json(tmp_path, fitted):
    path = tmp_path / "patients.csv"
    FRAME.to_csv(path, index=False)
    command = ["fit", "pressure ~ age + sex", str(path), "--sites", "hospital", "--prior", VAGUE]
    printed = CliRunner().invoke(app, command)
    assert printed.exit_code == 0, printed.output
    assert printed.output.rstrip("\n") == repr(fitted["pressure ~ age + sex"])
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert found["status"] == "converged"
    assert found["coefficients"][1]["mean"] == pytest.approx(fitted["pressure ~ age + sex"].mean[1])
    assert found["sites"]["Hull"]["rows"] == int((FRAME.hospital == "Hull").sum())


def test_the_page_shows_what_is_printed(capsys):
    program, shown = (block.text for block in blocks(ROOT / "docs" / "fit.md") if block.language in ("python", "text"))
    exec(program, {})
    assert shown.rstrip() in capsys.readouterr().out


@pytest.mark.slow
def test_the_readme_shows_what_is_printed():
    """On the bundled table, as `partita example` writes it."""
    shown = next(block.text for block in blocks(ROOT / "README.md") if block.language == "text")
    formula = shown.split("   (")[0]
    table = pt.datasets.adult_table()
    assert shown.rstrip() == pt.fit(formula, table, family="bernoulli", sites="workclass").table()
