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
    "y ~ age + (1 | ward)": ({"ward": ["Intercept"]}, "1 + age"),
    "y ~ (1 | ward)": ({"ward": ["Intercept"]}, "1"),
    "y ~ (1|ward) + age": ({"ward": ["Intercept"]}, "1 + age"),
    "y ~ age + (age | ward) + sex": ({"ward": ["Intercept", "age"]}, "1 + age + sex"),
    "y ~ 0 + age + (0 + age | `the ward`)": ({"the ward": ["age"]}, "age"),
    "log(y) ~ age + (1 + age | ward) - 1": ({"ward": ["Intercept", "age"]}, "age"),
    "y ~ (1 | hospital/ward)": ({"hospital": ["Intercept"], "hospital:ward": ["Intercept"]}, "1"),
    "y ~ (1 | hospital:ward) + age + (age | hospital)": (
        {"hospital": ["Intercept", "age"], "hospital:ward": ["Intercept"]},
        "1 + age",
    ),
    "y ~ age + (1 | `a/b`/ward/bed)": (
        {"a/b": ["Intercept"], "a/b:ward": ["Intercept"], "a/b:ward:bed": ["Intercept"]},
        "1 + age",
    ),
    "y ~ (1 | `a/b`:ward)": ({"a/b:ward": ["Intercept"]}, "1"),
    "y ~ (1 | ward) + (0 + age | ward) + age": ({"ward": ["Intercept", "age"]}, "1 + age"),
}
REFUSED = {
    "y ~ age + (1 | ward) + (1 | doctor)": r"\(1 \| ward\) and \(1 \| doctor\) are crossed effects",
    "y ~ age + (1 | hospital/ward) + (1 | doctor)": "crossed effects",
    "y ~ age + (age | ward) + (1 | ward)": "has the effect Intercept a second time",
    "y ~ age + (1 | ward) + (0 + age | ward) + (1 | ward)": "has the effect Intercept a second time",
    "y ~ age + (1 | a:b) + (0 + age | b:a) + (1 | b:a)": "has the effect Intercept a second time",
    "y ~ age + (1 + age + age | ward)": "has the effect age a second time",
    "y ~ age + (1 | hospital/ward:bed)": "cannot be read",
    "y ~ age + (1 | hospital/hospital)": "cannot be read",
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
    found, (effects, rest) = parsed(text), ADMITTED[text]
    assert {by: [name for term in found.grouped if term.by == by for name in term.names] for by in effects} == effects
    assert sorted(found.grouped, key=lambda term: len(term.columns)) == list(found.grouped)
    assert " + ".join(str(each) for each in found.terms) == rest
    assert {column for term in found.grouped for column in term.columns} <= set(found.columns)


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


@functools.cache
def inside():
    """Wards are rooms of hospitals, whose numbers are theirs only there."""
    rooms = patients().assign(hospital=[f"h{int(ward[1:]) // 2}" for ward in patients()["ward"]])
    rooms["room"] = [int(ward[1:]) % 2 for ward in rooms["ward"]]
    return rooms, fit("died ~ dose + (1 | hospital/room)", rooms)


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
    ((middle, low, high),) = fitted().intraclass().values()
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


@pytest.mark.slow
def test_groups_in_groups_have_effects_shares_and_a_scale_each():
    rooms, found = inside()
    scales = [each for each in found.coefficients() if each.name.startswith("sd of")]
    assert [each.name for each in scales] == ["sd of Intercept by hospital", "sd of Intercept by hospital:room"]
    shares = found.intraclass()
    assert list(shares) == ["hospital", "hospital:room"]
    assert all(0 < low < middle < high < 1 for middle, low, high in shares.values())
    told = found.group_effects()
    assert [each.by for each in told] == ["hospital"] * 6 + ["hospital:room"] * 12
    assert {each.group for each in told[:2]} == {"h0", "h1"}
    rooms_of_all = {f"h{hospital}:{room}" for hospital in range(6) for room in (0, 1)}
    assert {each.group for each in told if each.by == "hospital:room"} == rooms_of_all
    assert len(found.shrinkage().axes) == 2
    # what a room's rows say by themselves is beside the hospital's effect, and more than what is believed
    outer = [each for each in told if each.by == "hospital"]
    assert all(abs(each.mean) < abs(each.alone) + 0.15 for each in outer)
    whole = fit("died ~ dose + (1 | hospital) + (1 | hospital:room)", rooms, sites=None)
    np.testing.assert_allclose(whole.mean, found.mean, atol=1e-5)


@pytest.mark.slow
def test_a_known_room_a_new_room_and_a_new_hospital_are_predicted():
    rooms, found = inside()
    row = rooms.iloc[[95]]
    known, room, new = (float(found.predict(each)[0]) for each in (row, row.assign(room=7), row.assign(hospital="h9")))
    # the last hospital, and its last ward above all, have most deaths
    assert known > room > new
    posterior, shard = found.result.posterior, found.partition.shards[2]
    model, q, last = posterior.model, posterior.q, int(shard.rows) - 1
    outer, inner = jax.jit(model.expectation.conditionals)(model, q, shard.data, shard.weights)
    theta = np.asarray(q.sample(jax.random.key(0), (4000,)))
    x, group = np.asarray(shard.data.x), np.asarray(shard.data.group)
    hospital, whose = (np.unique(each, axis=0, return_inverse=True)[1].ravel()[last] for each in (group[:, :1], group))
    of_both = np.asarray(model.effects_drawn(q, inner, theta, jax.random.key(1)))[:, whose]
    of_outer = np.asarray(model.effects_drawn(q, outer, theta, jax.random.key(2)))[:, hospital]
    tau, f = np.log1p(np.exp(theta[:, x.shape[1] :])), theta[:, : x.shape[1]] @ x[last]
    noise = np.random.default_rng(0).normal(size=(4000, 2))
    drawn = [
        f + of_both.sum(axis=1),
        f + of_outer[:, 0] + tau[:, 1] * noise[:, 1],
        f + np.sum(tau * noise, axis=1),
    ]
    # draws, and the probit approximation of a prediction
    np.testing.assert_allclose([known, room, new], [np.mean(1 / (1 + np.exp(-each))) for each in drawn], atol=0.015)
