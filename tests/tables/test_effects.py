"""Contrasts and marginal effects against statsmodels."""

import numpy as np
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

from partita.errors import InputError
from support.patients import FORMULAS, PATIENTS, fitted

VAGUE = "normal(0, 100)"


@pytest.fixture(scope="module")
def reference():
    """The same fit by maximum likelihood, with the reference levels of ours, the most frequent ones."""
    return smf.logit("died ~ age + sex + ward", PATIENTS).fit(disp=0)


def test_contrasts_are_those_of_statsmodels(reference):
    """Under a vague prior; within the posterior's skewness."""
    fit = fitted("bernoulli", prior=VAGUE)
    for text, weights in {
        "ward[T.b] - ward[T.c]": {"ward[T.b]": 1, "ward[T.c]": -1},
        "sex[T.m] - 10 * age": {"sex[T.m]": 1, "age": -10},
        "-2.5age + sex[T.m] - sex[T.f]": {"age": -2.5, "sex[T.m]": 1, "sex[T.f]": -1},
    }.items():
        row = [weights.get(name, 0) for name in reference.params.index]
        expected = reference.t_test(row)
        found = fit.contrast(text)
        assert abs(found.mean - expected.effect[0]) < 0.05 * expected.sd.item()
        assert found.sd == pytest.approx(expected.sd.item(), rel=0.03)
        same = fit.contrast(weights)
        assert (same.mean, same.sd, same.low, same.high) == (found.mean, found.sd, found.low, found.high)
        np.testing.assert_allclose(found.ratio, np.exp([found.mean, found.low, found.high]))
        np.testing.assert_allclose([found.low, found.high], found.mean + found.sd * 1.959964 * np.array([-1, 1]))
    assert fitted("gaussian").contrast("age").ratio is None
    assert "probability" in repr(found)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("height", "height"),
        ({"height": 1}, "height"),
        ({"age": "1"}, "weight of age"),
        ("age sex[T.m]", "put \\+ or -"),
        ("", "empty"),
        ("age +", "cannot be read"),
        ("__import__('os')", "cannot be read"),
        ("age * age", "put"),
        ("sex[T.f]", "reference"),
        (3, "text or a dict"),
    ],
)
def test_what_is_no_contrast_is_refused(what, said):
    with pytest.raises(InputError, match=said):
        fitted("bernoulli", prior=VAGUE).contrast(what)


def test_marginal_effects_are_those_of_statsmodels(reference):
    """Derivatives for age, differences for sex and ward, with the delta method's standard errors."""
    fit = fitted("bernoulli", prior=VAGUE)
    expected = reference.get_margeff(dummy=True).summary_frame()
    found = fit.marginal_effect("age") | fit.marginal_effect("sex")
    for ours, theirs in {"age": "age", "sex: m - f": "sex[T.m]"}.items():
        value, error = expected.loc[theirs, ["dy/dx", "Std. Err."]]
        assert abs(found[ours].mean - value) < 0.15 * error, "0.03 of it is Monte Carlo error, and shrinkage"
        assert found[ours].sd == pytest.approx(error, rel=0.1)
        assert found[ours].low < value < found[ours].high
    assert list(fit.marginal_effect("ward")) == ["ward: b - a", "ward: c - a"]


def test_of_a_linear_model_they_are_the_coefficients():
    fit = fitted("gaussian")
    for name, effect in (fit.marginal_effect("age") | fit.marginal_effect("sex")).items():
        row = fit.coefficients()[1 if name == "age" else 2]
        assert effect.mean == pytest.approx(row.mean, abs=0.1 * row.sd)
        assert effect.sd == pytest.approx(row.sd, rel=0.1)


def test_offsets_count():
    """d E[y] / d age = coefficient · E[y], with each row's days."""
    fit = fitted("poisson")
    model = sm.GLM.from_formula(
        "visits ~ age + sex", PATIENTS, family=sm.families.Poisson(), offset=np.log(PATIENTS.days)
    )
    exact = model.fit()
    found = fit.marginal_effect("age")["age"]
    assert found.mean == pytest.approx(exact.params["age"] * exact.fittedvalues.mean(), abs=0.1 * found.sd)
    with pytest.raises(InputError, match="height"):
        fit.marginal_effect("height")
    assert FORMULAS["poisson"].count("days")
    assert fit.marginal_effect("days")["days"].mean == pytest.approx(
        (exact.fittedvalues / PATIENTS.days).mean(), rel=0.05
    )
