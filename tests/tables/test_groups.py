"""Effects of groups in formulas: what is admitted, and a fit's scales, predictions and group effects."""

import functools

import jax
import numpy as np
import pandas
import pytest

import partita as pt
from partita.errors import InputError
from partita.tables.formula import parsed

ADMITTED = {
    "y ~ age + (1 | ward)": (True, (), "ward", "1 + age"),
    "y ~ (1 | ward)": (True, (), "ward", "1"),
    "y ~ (1|ward) + age": (True, (), "ward", "1 + age"),
    "y ~ age + (age | ward) + sex": (True, ("age",), "ward", "1 + age + sex"),
    "y ~ 0 + age + (0 + age | `the ward`)": (False, ("age",), "the ward", "age"),
    "log(y) ~ age + (1 + age | ward) - 1": (True, ("age",), "ward", "age"),
}
REFUSED = {
    "y ~ age + (1 | ward) + (1 | doctor)": "2 group terms",
    "y ~ age + (1 | hospital/ward)": "groups within groups",
    "y ~ age * (1 | ward)": "not added",
    "y ~ age - (1 | ward)": "not added",
    "y ~ age + (1 + sex | ward)": "no term by itself",
    "y ~ age + (0 | ward)": "no effects",
    "y ~ age + (1 + log(age) | ward)": "cannot be read|admitted",
    "y ~ age + (2 | ward)": "must be 1 or 0",
    "y ~ age + (1 | y)": "also stands on the right",
    "y ~ age + (1 | )": "cannot be read",
    "y ~ age + (1 | __import__('os'))": "admitted",
}


@pytest.mark.parametrize("text", ADMITTED)
def test_group_terms_are_split_off(text):
    found, (intercept, slopes, group, rest) = parsed(text), ADMITTED[text]
    term = found.grouped
    assert (term.intercept, term.slopes, term.group.text) == (intercept, slopes, group)
    assert " + ".join(str(each) for each in found.terms) == rest
    assert group in found.columns


@pytest.mark.parametrize("text", REFUSED)
def test_other_group_terms_are_refused_in_one_sentence(text):
    with pytest.raises(InputError, match=REFUSED[text]) as error:
        parsed(text)
    assert len(str(error.value)) < 300


@functools.cache
def patients():
    """Twelve wards at three sites, of which two are far apart."""
    generator = np.random.default_rng(0)
    ward, dose = np.repeat(np.arange(12), 8), generator.normal(10, 3, 96)
    own = np.linspace(-1.5, 1.5, 12)
    chance = 1 / (1 + np.exp(0.3 - 0.2 * (dose - 10) - own[ward]))
    columns = {"dose": dose, "died": generator.binomial(1, chance), "ward": [f"w{k}" for k in ward]}
    return pandas.DataFrame({**columns, "site": [f"s{k // 4}" for k in ward], "count": generator.poisson(3, 96)})


def fit(formula="died ~ dose + (1 | ward)", table=None, family="bernoulli", sites="site"):
    return pt.fit(formula, patients() if table is None else table, family=family, sites=sites, tolerance=1e-10)


@functools.cache
def fitted():
    return fit()


def test_what_cannot_be_is_refused():
    twice = patients().assign(ward=["a"] * 96)
    with pytest.raises(InputError, match="ward 'a' lies at the sites s0 and s1"):
        fit(table=twice)
    with pytest.raises(InputError, match="negative_binomial takes no effects of groups"):
        fit("count ~ dose + (1 | ward)", family="negative_binomial")
    with pytest.raises(InputError, match="which is a category"):
        fit("died ~ site + (1 + site | ward)")
    with pytest.raises(InputError, match="has no column 'bed'"):
        fit("died ~ dose + (1 | bed)")


@pytest.mark.slow
def test_scales_are_told_with_their_interval():
    *_, scale = fitted().coefficients()
    assert scale.name == "sd of Intercept by ward"
    assert 0 < scale.low < scale.mean < scale.high
    # wards are 0.95 apart from their mean on average, of which the prior has little
    assert 0.4 < scale.mean < 1.5
    middle, low, high = fitted().intraclass()
    assert 0 < low < middle < high < 1
    np.testing.assert_allclose(high, scale.high**2 / (scale.high**2 + np.pi**2 / 3), rtol=1e-6)


@pytest.mark.slow
def test_sites_do_not_matter():
    whole = fit(sites=None)
    np.testing.assert_allclose(whole.mean, fitted().mean, atol=1e-5)
    np.testing.assert_allclose(whole.free_energy, fitted().free_energy, atol=1e-7)


@pytest.mark.slow
def test_groups_are_shrunk_to_what_all_have_in_common():
    told = fitted().group_effects()
    assert [each.site for each in told] == sorted(each.site for each in told)
    assert {each.group for each in told} == set(patients()["ward"])
    assert all(abs(each.mean) < abs(each.alone) + 0.15 for each in told)
    assert np.corrcoef([each.mean for each in told], [each.alone for each in told])[0, 1] > 0.9
    assert len(fitted().shrinkage().axes) == 1


@pytest.mark.slow
def test_known_groups_are_predicted_by_their_effects_and_new_ones_by_the_scale():
    rows = patients().iloc[[0, 95]]
    known, new = fitted().predict(rows), fitted().predict(rows.assign(ward="other"))
    assert known[0] < new[0]
    assert known[1] > new[1]
    posterior, table = fitted().result.posterior, fitted().partition.shards[0].data
    draws = posterior.q.sample(jax.random.key(0), (4000,))
    drawn = jax.jit(jax.vmap(lambda theta: posterior.model.response_of(theta, table)[0]))(draws)
    # draws, and the probit approximation of a prediction
    np.testing.assert_allclose(new[0], np.mean(drawn), atol=0.01)


@pytest.mark.slow
def test_rows_of_groups_are_not_left_out_one_by_one():
    with pytest.raises(InputError, match="not independent given its coefficients"):
        fitted().loo(draws=100)
    with pytest.raises(InputError, match="not independent given its coefficients"):
        fitted().check(draws=50)
    with pytest.raises(InputError, match="'ward'"):
        fitted().marginal_effect("ward")
