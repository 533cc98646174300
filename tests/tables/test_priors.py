"""Priors of a formula's coefficients: by name, for some of them, with scales that are inferred."""

import jax
import numpy as np
import pandas
import pytest
from jax import enable_x64

import partita as pt
from partita.errors import InputError
from partita.tables.laws import Laws

_generator = np.random.default_rng(3)
_SIZE = 90
FRAME = pandas.DataFrame(
    {
        "age": _generator.normal(60, 10, _SIZE),
        "dose": _generator.normal(size=_SIZE),
        "ward": np.array(["a", "a", "b", "c"])[_generator.integers(0, 4, _SIZE)],
        "hospital": np.array(["Hull", "Leeds", "York"])[np.arange(_SIZE) % 3],
    }
)
FRAME["died"] = (_generator.logistic(size=_SIZE) + (FRAME.age - 60) / 10 > 0).astype(int)
FORMULA = "died ~ age + dose + C(ward)"
NAMES = ("Intercept", "age", "dose", "C(ward)[T.b]", "C(ward)[T.c]")


def fit(prior, frame=FRAME, **settings):
    return pt.fit(FORMULA, frame, family="bernoulli", sites="hospital", prior=prior, **settings)


def assert_same(first, other, rtol=1e-5):
    # answers lie within 1e-6 nats of the posterior, 1.4e-3 of a standard deviation at most
    sd = np.sqrt(np.diag(other.covariance))
    np.testing.assert_allclose(first.mean / sd, other.mean / sd, atol=1e-3)
    np.testing.assert_allclose(np.sqrt(np.diag(first.covariance)), sd, rtol=1e-3)


def whose(text):
    """The coefficients of each law, in the order of the text, with whether their scale is inferred."""
    found = Laws.of(text, NAMES)
    return [(tuple(NAMES[k] for k in each.places), each.scale is not None) for each in found.placed(0)]


def test_a_law_is_of_all_coefficients_but_the_intercept():
    assert whose("cauchy(0, 2)") == [(("Intercept",), False), (NAMES[1:], False)]


def test_some_have_their_own_and_a_category_is_all_of_its_levels():
    text = "C(ward): normal(0, half_normal(1)); age, Intercept: laplace(0, 1); horseshoe(0.1)"
    assert whose(text) == [(NAMES[3:], True), (("Intercept", "age"), False), (("dose",), True)]


def test_a_mapping_is_a_text():
    with enable_x64(True):
        given = fit({"age": "laplace(0, 1)", "": "normal(0, 1)"}, rounds=1)
    assert given.spec.settings.prior == "age: laplace(0, 1); normal(0, 1)"
    assert set(given.by_site("age")) == {"Hull", "Leeds", "York"}
    assert given.units.parameters == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["student_t(3, 0, 2.5)", "C(ward): normal(0, half_normal(1)); r2d2()"])
def test_a_fit_goes_on_as_sites_come_and_go(prior, tmp_path):
    whole, rest = fit(prior), FRAME[FRAME.hospital != "York"]
    # the design stays that of all sites, so that what is left is compared with a fit that was grown
    left = whole.without("York")
    assert {site.name for site in left.sites} == {"Hull", "Leeds"}
    back = left.update(FRAME[FRAME.hospital == "York"], "York", revisit=True)
    assert_same(back, whole)
    whole.save(tmp_path / "fit")
    loaded = pt.Fit.load(tmp_path / "fit")
    assert_same(loaded, whole)
    np.testing.assert_allclose(loaded.free_energy, whole.free_energy, rtol=1e-6)
    assert len(rest) == 60


@pytest.mark.slow
def test_a_prior_counts_in_the_joint_density():
    """k of q against the joint density is below 0.7 only where that has the prior in it."""
    found = fit("student_t(3, 0, 2.5)")
    assert found.loo(draws=500).shape < 0.5
    with enable_x64(True):
        spec = found.spec
        theta = jax.numpy.arange(5.0)
        known = spec.prior().log_prob(theta)
    from scipy import stats

    told = stats.norm(0, 10).logpdf(0.0) + stats.t(3, scale=2.5).logpdf(np.arange(1.0, 5.0)).sum()
    np.testing.assert_allclose(known, told, rtol=1e-9)


def test_a_prior_of_another_column_is_refused():
    with pytest.raises(InputError, match="no coefficient named 'weight'"):
        Laws.of("weight: normal(0, 1)", NAMES)
