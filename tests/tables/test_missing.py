"""Missing predictors: dropped, replaced by their mean and marked, or drawn several times."""

import numpy as np
import pandas
import pytest
import statsmodels.api as sm
from statsmodels.imputation import mice
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import DataError, SettingsError
from partita.tables.agreement import agreed
from partita.tables.imputation import combined, imputed
from partita.tables.reading import MISSING, frame_of, sites_of
from partita.tables.spec import Settings


def rows(size=600, seed=0):
    """A table in which a fifth of a number and of a category is missing, the more often the larger the response is."""
    generator = np.random.default_rng(seed)
    dose = generator.normal(5, 2, size)
    age = 60 + 3 * (dose - 5) + generator.normal(0, 10, size)
    sex = np.where(generator.random(size) < 1 / (1 + np.exp(-(dose - 5) / 2)), "m", "f").astype(object)
    pain = 1 + 0.5 * dose + 0.05 * (age - 60) + 1.0 * (sex == "m") + generator.normal(0, 1.5, size)
    late = 1 / (1 + np.exp(-3 * (pain - pain.mean())))
    gone = generator.random((2, size)) < 0.4 * late
    frame = pandas.DataFrame({"dose": dose, "age": age, "sex": sex, "pain": pain})
    frame["site"] = generator.choice(["Hull", "York"], size)
    holes = frame.copy()
    holes.loc[gone[0], "age"] = np.nan
    holes.loc[gone[1], "sex"] = None
    return frame, holes


WHOLE, HOLES = rows()


def test_missing_numbers_become_the_mean_and_are_marked():
    fit = pt.fit("pain ~ dose + age", HOLES, sites="site", missing="mean", prior="normal(0, 100)")
    gone = HOLES.age.isna()
    mean = HOLES.age.mean()
    x = pandas.DataFrame({"dose": HOLES.dose, "age": HOLES.age.fillna(mean), "gone": gone.astype(float)})
    expected = sm.OLS(HOLES.pain, sm.add_constant(x)).fit()
    assert fit.names == ("Intercept", "dose", "age", "missing(age)")
    np.testing.assert_allclose(fit.mean, expected.params, atol=0.05 * expected.bse.min())
    np.testing.assert_allclose(np.sqrt(np.diag(fit.covariance)), expected.bse, rtol=0.02)
    assert f"age is missing in {gone.sum()} rows: its mean stands there, marked by missing(age)." in fit.notes
    told = fit.predict({"dose": [5.0, 5.0], "age": [np.nan, mean]})
    assert told[0] - told[1] == pytest.approx(fit.mean[3])


def _read(formula, frame, site="site"):
    """Settings, and the sites' rows."""
    settings = Settings(formula, missing="mean")
    return settings, sites_of(frame_of(frame), settings.columns, site, settings.optional)


def test_a_missing_category_has_a_level_of_its_own():
    settings, sites = _read("pain ~ sex", HOLES)
    assert agreed(settings.begun, sites).design.names == ("Intercept", "sex[T.(missing)]", "sex[T.m]")
    assert sum(site.rows for site in sites) == len(HOLES)


def test_without_missing_values_policies_are_the_same():
    policies = ("drop", "mean", "multiple")
    one, *others = (pt.fit("pain ~ dose + sex", WHOLE, sites="site", missing=missing) for missing in policies)
    for other in others:
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
        np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-9)


def test_rows_without_response_are_dropped_in_any_case():
    _, (site,) = _read("pain ~ age", HOLES.assign(pain=HOLES.pain.where(HOLES.index > 3)), None)
    assert (site.rows, site.dropped) == (len(HOLES) - 4, 4)


def _regression(frame):
    x = sm.add_constant(pandas.DataFrame({"dose": frame.dose, "age": frame.age, "male": (frame.sex == "m") * 1.0}))
    return sm.OLS(frame.pain, x).fit()


def _draws(number):
    (site,) = sites_of(frame_of(HOLES), ("dose", "age", "sex", "pain"), None, {"age", "sex"})
    generator = np.random.default_rng(1)
    return [pandas.DataFrame(dict(imputed(site, generator).columns)) for _ in range(number)]


def test_draws_keep_what_is_known_and_fill_the_rest():
    (drawn,) = _draws(1)
    known = HOLES.age.notna()
    np.testing.assert_array_equal(drawn.age[known], HOLES.age[known])
    assert drawn.age.isin(HOLES.age.dropna()).all()
    assert set(drawn.sex) == {"f", "m"}
    assert MISSING not in set(drawn.sex)


@pytest.mark.slow
def test_combined_draws_are_those_of_statsmodels_and_near_the_whole_table():
    """Both impute by chance: with 20 draws means differ by a fraction of an sd; complete cases are biased by more."""
    fits = [_regression(frame) for frame in _draws(20)]
    found = combined(np.array([fit.params for fit in fits]), np.array([fit.cov_params() for fit in fits]))
    coded = HOLES[["dose", "age", "pain"]].assign(male=HOLES.sex.map({"m": 1.0, "f": 0.0}))
    np.random.seed(0)  # noqa: NPY002, since statsmodels draws from the global generator
    other = mice.MICE("pain ~ dose + age + male", sm.OLS, mice.MICEData(coded)).fit(n_imputations=20, n_burnin=5)
    sd = np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose((found.mean - other.params) / sd, 0, atol=0.35)
    np.testing.assert_allclose(sd, other.bse, rtol=0.15)
    whole, dropped = _regression(WHOLE), _regression(HOLES.dropna())
    away, biased = (np.abs(mean - whole.params) / whole.bse for mean in (found.mean, dropped.params))
    assert away.max() < 1 < biased.max()
    assert (sd > whole.bse).all()


def test_rubins_rules():
    means, covariances = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([np.eye(2), 3 * np.eye(2)])
    found = combined(means, covariances)
    np.testing.assert_allclose(found.mean, [2, 0])
    np.testing.assert_allclose(found.covariance, [[2 + 1.5 * 2, 0], [0, 2]])


def test_a_site_with_few_values_says_so():
    frame = HOLES.assign(age=HOLES.age.where(HOLES.index < 10))
    (site,) = sites_of(frame_of(frame), ("age", "pain"), None, {"age"})
    with pytest.raises(DataError, match="too few to impute"):
        imputed(site, np.random.default_rng(0))


def fit_of_drawn(**settings):
    return pt.fit(
        "pain ~ dose + age + sex", HOLES, sites="site", missing="multiple", prior="normal(0, 100)", **settings
    )


@pytest.fixture(scope="module")
def drawn():
    return fit_of_drawn(imputations=5)


def test_a_fit_of_drawn_values_is_near_statsmodels():
    """Sites draw from their own rows, half of them each; the noise of ten draws is a fraction of an sd."""
    drawn = fit_of_drawn()  # ten are the default
    coded = HOLES[["dose", "age", "pain"]].assign(male=HOLES.sex.map({"m": 1.0, "f": 0.0}))
    np.random.seed(0)  # noqa: NPY002, since statsmodels draws from the global generator
    other = mice.MICE("pain ~ dose + age + male", sm.OLS, mice.MICEData(coded)).fit(n_imputations=20, n_burnin=5)
    expected = dict(
        zip(("Intercept", "dose", "age", "sex[T.m]"), zip(other.params, other.bse, strict=True), strict=True)
    )
    found = {row.name: row for row in drawn.coefficients()}
    assert found.keys() == {"Intercept", "dose", "age", "sex[T.f]"}
    for name in ("dose", "age"):
        assert abs(found[name].mean - expected[name][0]) < 0.5 * expected[name][1]
        assert found[name].sd == pytest.approx(expected[name][1], rel=0.2)
    assert abs(found["sex[T.f]"].mean + expected["sex[T.m]"][0]) < 0.5 * expected["sex[T.m]"][1]


def test_drawn_values_widen_the_posterior_and_are_told(drawn):
    within = np.mean([fit.covariance for fit in drawn.imputations], axis=0)
    assert (np.diag(drawn.covariance) > np.diag(within)).all()
    np.testing.assert_allclose(drawn.mean, np.mean([fit.mean for fit in drawn.imputations], axis=0))
    counts = f"age in {HOLES.age.isna().sum()} rows, sex in {HOLES.sex.isna().sum()} rows"
    assert f"Missing values ({counts}) were drawn 5 times at the sites" in drawn.notes[-1]
    assert sum(site.rows for site in drawn.sites) == len(HOLES)


def test_a_fit_of_drawn_values_tells_sites_and_predicts(drawn):
    assert list(drawn.by_site("age")) == ["Hull", "York"]
    assert drawn.by_site("age")["Hull"]["all"] == pytest.approx((drawn.mean[2], drawn.covariance[2, 2] ** 0.5))
    told = drawn.predict(WHOLE)
    assert np.corrcoef(told, WHOLE.pain)[0, 1] > 0.6
    alone = drawn.without("Hull")
    assert [site.name for site in alone.sites] == ["York"]
    assert len(alone.imputations) == 5


def test_a_folder_of_drawn_values_is_refused_before_anything_is_written(tmp_path):
    HOLES.to_csv(tmp_path / "holes.csv", index=False)
    words = ["fit", "pain ~ dose", str(tmp_path / "holes.csv"), "--missing", "multiple", "--forest", "dose"]
    with pytest.raises(SettingsError, match="--output keeps one fit"):
        CliRunner().invoke(app, [*words, "--output", str(tmp_path / "study")], catch_exceptions=False)
    assert not (tmp_path / "study").exists()
