"""The design matrix that sites agree on is that of the pooled rows."""

import formulaic
import numpy as np
import pandas
import pytest

from partita.errors import DataError, SettingsError
from partita.tables.agreement import Agreement
from partita.tables.agreement import agreed as agreement
from partita.tables.episodes import RowSplit
from partita.tables.formula import parsed
from partita.tables.reading import Site, frame_of, sites_of


def rows(size=120, seed=0):
    generator = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "age": generator.normal(60, 12, size),
            "bmi": generator.gamma(20, 1.3, size),
            "sex": generator.choice(["f", "m"], size),
            "ward": generator.choice(list("abc"), size, p=[0.2, 0.5, 0.3]),
            "site": generator.choice(["Hull", "Leeds", "York"], size),
            "y": generator.normal(size=size),
        }
    )


FRAME = rows()


def agreed(text, frame=FRAME, sites="site"):
    formula = parsed(text)
    found = sites_of(frame_of(frame), (*formula.response.columns, *formula.columns), sites)
    return agreement(Agreement.of(RowSplit(parsed(text))), found).design, found


@pytest.mark.parametrize(
    "text",
    [
        "age + sex + ward",
        "age*sex",
        "sex:ward",
        "0 + ward + ward:age",
        "center(age) + scale(bmi)",
        "I(age ** 2) + log(bmi):sex",
        "bs(bmi, knots=[22, 28], degree=2)",
    ],
)
def test_it_is_formulaics_on_pooled_rows(text):
    design, sites = agreed(f"y ~ {text}")
    ordered = FRAME.assign(
        sex=pandas.Categorical(
            FRAME.sex, [design.references.get("sex", "f"), *{"f", "m"} - {design.references.get("sex", "f")}]
        ),
        ward=pandas.Categorical(FRAME.ward, ["b", "a", "c"]),
    )
    given = text.replace("scale(bmi)", "scale(bmi, ddof=0)")
    if "bs(" in text:
        spline = design.splines["bs(bmi, knots=[22, 28], degree=2)"]
        given = text.replace("degree=2", f"degree=2, lower_bound={spline.low!r}, upper_bound={spline.high!r}")
    expected = formulaic.model_matrix(given, ordered)
    pooled = np.concatenate([design.matrix(site) for site in sites])
    order = np.concatenate([np.flatnonzero(FRAME.site == site.name) for site in sites])
    np.testing.assert_allclose(pooled, expected.to_numpy(float)[order], atol=1e-12)


def test_standardised_columns_have_mean_0_and_sd_1_over_all_sites_and_coefficients_are_turned_back():
    design, sites = agreed("y ~ age*sex + ward")
    plain = np.concatenate([design.matrix(site) for site in sites])
    standard = np.concatenate([design.standardised(site) for site in sites])
    np.testing.assert_allclose(standard[:, 1:].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standard[:, 1:].std(0), 1, atol=1e-12)
    coefficients = np.random.default_rng(1).normal(size=len(design.names))
    np.testing.assert_allclose(plain @ (design.in_own_units() @ coefficients), standard @ coefficients, atol=1e-10)


def test_without_an_intercept_columns_are_only_scaled():
    design, sites = agreed("y ~ 0 + age")
    assert design.mean == 0
    np.testing.assert_allclose(design.standardised(sites[0]) * design.sd, design.matrix(sites[0]))


def test_the_reference_is_the_most_frequent_level_or_the_one_that_is_named():
    assert agreed("y ~ ward")[0].references == {"ward": "b"}
    named, _ = agreed("y ~ C(ward, reference='c')")
    assert named.references == {"C(ward, reference='c')": "c"}
    assert named.names == ("Intercept", "C(ward, reference='c')[T.a]", "C(ward, reference='c')[T.b]")


def test_numbers_can_be_categories():
    design, _ = agreed("y ~ C(grade)", FRAME.assign(grade=np.arange(120) % 3))
    assert design.names == ("Intercept", "C(grade)[T.1]", "C(grade)[T.2]")


def test_knots_lie_within_a_tenth_of_a_standard_deviation_of_pooled_quantiles():
    spline = agreed("y ~ bs(bmi, df=6)")[0].splines["bs(bmi, df=6)"]
    exact = np.quantile(FRAME.bmi, [0.25, 0.5, 0.75])
    assert np.abs(np.array(spline.knots) - exact).max() < 0.1 * FRAME.bmi.std(ddof=0)


def test_what_sites_agree_on_does_not_depend_on_how_rows_are_divided():
    one, _ = agreed("y ~ scale(age) + bs(bmi, df=5) + ward")
    other, _ = agreed("y ~ scale(age) + bs(bmi, df=5) + ward", FRAME.sample(frac=1, random_state=3), None)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(one.sd, other.sd, rtol=1e-9)
    assert one.names == other.names


BAD = {
    "y ~ height": "no column 'height'",
    "y ~ C(ward, reference='z')": "no row has",
    "y ~ one": "one level",
    "y ~ flat": "same in every row",
    "y ~ log(zero)": "not finite",
    "y ~ center(sex)": "holds texts",
    "y ~ identifier": "levels",
    "y ~ bs(bmi)": "df or knots",
    "y ~ bs(bmi, df=2)": "df from 3",
    "y ~ bs(bmi, knots=[1])": "knots",
    "y ~ bs(bmi, df=4, oops=1)": "oops",
    "y ~ when": "type",
}


@pytest.mark.parametrize("text", BAD)
def test_columns_that_cannot_be_used_are_named(text):
    frame = rows(1200).assign(
        one="a",
        flat=2.0,
        zero=0.0,
        identifier=[f"patient {n}" for n in range(1200)],
        when=pandas.Timestamp("2026-01-01"),
    )
    with pytest.raises((DataError, SettingsError), match=BAD[text]):
        agreed(text, frame)


def test_a_level_that_the_fit_did_not_have_is_refused():
    design, _ = agreed("y ~ ward")
    with pytest.raises(DataError, match="'d'"):
        design.matrix(Site("new", {"ward": np.array(["a", "d"])}, 2, 0))
