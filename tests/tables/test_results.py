"""Results of fits of every likelihood: per unit of the response, row by row of the table, and with or without rows."""

import csv
import json

import jax
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats

import partita as pt
from partita.data.shard import Partition
from partita.errors import InputError
from partita.tables.draws import draws_of, log_densities
from partita.tables.fit import Fit
from partita.tables.fitted import rows_of
from partita.tables.likelihoods import LIKELIHOODS
from partita.tables.loo import joint_ratios
from support.families import FAMILIES, FRAME, fitted_family

QUICK = ("gamma", "multinomial", "piecewise_exponential")
"""One with a shape, one of classes, and one whose rows are split."""
DRAWS = 100


def chosen(names, quick=QUICK):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def density(family, theta):
    """log p(y_n | θ_s) of site A per unit of the response as it was given, by SciPy, from draws in own units."""
    fit, frame = fitted_family(family), FRAME[FRAME.site == "A"]
    own = theta @ fit.units.turn.T + fit.units.shift
    linear = (np.column_stack([np.ones(len(frame)), frame.x]) @ own[:, :2].T)[..., None]
    return _DENSITIES[family](frame, linear, np.exp(own[None, :, 2:]))[..., 0] if family in _DENSITIES else None


def weibull(frame, linear, own):
    law = stats.weibull_min(own, scale=np.exp(linear))
    time, died = frame.days.to_numpy()[:, None, None], frame.died.to_numpy()[:, None, None]
    return np.where(died == 1, law.logpdf(time), law.logsf(time))


def exponential(frame, linear, own):
    time, died = frame.days.to_numpy()[:, None, None], frame.died.to_numpy()[:, None, None]
    law = stats.expon(scale=np.exp(-linear))
    return np.where(died == 1, law.logpdf(time), law.logsf(time))


_DENSITIES = {
    "gamma": lambda frame, linear, own: stats.gamma.logpdf(
        frame.cost.to_numpy()[:, None, None], own, scale=np.exp(linear) / own
    ),
    "weibull": weibull,
    "exponential": exponential,
    "student_t": lambda frame, linear, own: stats.t.logpdf(
        frame.robust.to_numpy()[:, None, None], own[..., 1:], linear, own[..., :1]
    ),
}


def test_there_is_a_case_of_every_likelihood():
    assert set(LIKELIHOODS) <= set(FAMILIES)


@pytest.mark.parametrize("family", chosen(_DENSITIES))
def test_densities_are_per_unit_of_the_response_as_it_was_given(family):
    fit = fitted_family(family)
    theta = np.asarray(draws_of(fit.result.posterior.q, 20, 0))
    found = np.concatenate([piece for piece, _ in log_densities(fit.result.posterior.model, rows_of(fit)["A"], theta)])
    np.testing.assert_allclose(found, density(family, theta), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("family", chosen(FAMILIES))
def test_every_result_of_every_likelihood(family, tmp_path):
    fit, count = fitted_family(family), len(FRAME)
    check, loo = fit.check(draws=400), fit.loo(draws=DRAWS)  # so many that a share of 0.02 is not 0 by chance
    assert sum(site.rows for site in check.sites.values()) == loo.rows == count
    assert np.isfinite([check.score, loo.elpd, loo.se, loo.evidence, loo.free_energy]).all()
    assert loo.elpd / count == pytest.approx(check.score, abs=0.3)
    assert loo.evidence > loo.free_energy - 1.0
    for site in check.sites.values():
        shares = [group for group in site.coverage if group.observed is not None]
        for group in shares:
            error = np.sqrt(group.expected * (1 - group.expected) / group.rows)
            assert abs(group.observed - group.expected) < 4 * error + 0.5 / group.rows
        assert all(each.p is None or 1e-3 < each.p < 1 - 1e-3 for each in site.quantities)
    assert check.draw() is not None
    slope = next(name for name in fit.names if name.endswith("x"))
    assert fit.contrast(f"2 * {slope}").mean == pytest.approx(2 * fit.mean[fit.names.index(slope)])
    effects = fit.marginal_effect("x", draws=DRAWS)
    assert len(effects) == max(1, len(fit.response.labels) if fit.response.labels[2:] else 1)
    if len(effects) > 1:
        assert sum(effect.mean for effect in effects.values()) == pytest.approx(0, abs=1e-6)
        assert next(iter(effects)) == f"x, {fit.response.labels[0]}"
    assert len(fit.forest("x").axes) == sum(name.endswith("x") for name in fit.names)
    tree = fit.to_arviz(draws=DRAWS, rows=True)
    if constants := fit.coefficients()[len(fit.names) :]:
        drawn = tree["posterior"]["constants"].stack(every=("chain", "draw"))
        assert list(drawn.constant.values) == [row.name for row in constants]
        means, sds = np.array([(row.mean, row.sd) for row in constants]).T
        assert (np.abs(drawn.mean("every").values - means) < 5 * sds / np.sqrt(DRAWS)).all()
    name = fit.formula.split("~")[0].strip()
    assert tree["log_likelihood"][name].sizes == {"chain": 4, "draw": DRAWS // 4, "row": count}
    fit.to_json(tmp_path / "fit.json")
    told = json.loads((tmp_path / "fit.json").read_text())
    assert (told["response"]["name"], told["joint"]["names"]) == (name, list(fit.joint()[0]))
    fit.to_csv(tmp_path / "fit.csv")
    rows = list(csv.DictReader((tmp_path / "fit.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == [row.name for row in fit.coefficients()]
    compared = pt.compare({"one": fit, "other": fit}, draws=DRAWS)
    assert [row.behind for row in compared.rows] == [0, 0]


@pytest.mark.parametrize("family", chosen(FAMILIES, ("multinomial", "piecewise_exponential")))
def test_marginal_effects_are_derivatives_of_predictions(family):
    """Averaged over rows, with columns moved by hand; predictions are means over q, and so are effects over draws."""
    fit, step = fitted_family(family), 0.01
    up, down = (fit.predict(FRAME.assign(x=FRAME.x + side * step)).mean(axis=0) for side in (1, -1))
    found = fit.marginal_effect("x", draws=400)
    for effect, expected in zip(found.values(), np.atleast_1d((up - down) / (2 * step)), strict=True):
        assert abs(effect.mean - expected) < 5 * effect.sd / 20 + 0.02 * abs(expected)


@pytest.mark.parametrize("family", chosen(["negative_binomial", "gamma", "piecewise_exponential"], ("gamma",)))
def test_elpd_and_k_are_those_of_arviz(family):
    """On the same draws; of split rows the densities of a row's episodes are summed."""
    fit = fitted_family(family)
    theta, ratios = joint_ratios(fit, rows_of(fit), 400, 0)
    model, found = fit.result.posterior.model, fit.loo(400)
    log_q = np.asarray(jax.vmap(fit.result.posterior.q.log_prob)(theta))
    pieces = [piece for rows in rows_of(fit).values() for piece, _ in log_densities(model, rows, theta)]
    expected = [
        array_stats.loo_approximate_posterior(row[None], (ratios + log_q)[None], log_q[None])
        for row in np.concatenate(pieces)
    ]
    elpd, shapes, effective = (np.array(part) for part in zip(*expected, strict=True))
    assert found.rows == len(elpd) == len(FRAME)
    assert found.elpd == pytest.approx(elpd.sum(), rel=1e-9)
    assert found.effective == pytest.approx(effective.sum(), rel=1e-6)
    assert max(site.shape for site in found.sites.values()) == pytest.approx(shapes.max(), rel=1e-6)


def test_simulated_times_of_episodes_have_the_distribution_of_their_hazards():
    """Against the cumulative hazard, by which a time is exponential: three intervals of different hazards."""
    rows = fitted_family("piecewise_exponential").spec.agreement.rows
    hazards = np.broadcast_to(np.array([0.3, 0.5, 0.01])[None, :, None], (1, 3, 2000))
    level = np.random.default_rng(0).exponential(size=(1, 2000))
    (times,) = rows._reached(hazards, level)
    starts = np.array([0.0, *rows.cuts])
    rates = np.array([0.3, 0.5, 0.01]) / np.append(np.diff(starts), 1)
    spent = np.clip(times[:, None] - starts, 0, np.append(np.diff(starts), np.inf))
    np.testing.assert_allclose(spent @ rates, level[0], rtol=1e-9)


def test_censored_times_are_told_and_left_out():
    found = fitted_family("piecewise_exponential").check(draws=DRAWS)
    assert all(site.quantities == () and site.censored for site in found.sites.values())
    assert any("censored" in note for note in found.notes)


@pytest.fixture(scope="module")
def federated():
    """As a federation gives it: sites have no rows, and there is no file."""
    fit = fitted_family("gamma")
    return Fit(fit.spec, tuple(site._replace(columns={}) for site in fit.sites), Partition((), (), ()), fit.result)


@pytest.mark.parametrize(
    "ask",
    [
        lambda fit: fit.check(),
        lambda fit: fit.loo(),
        lambda fit: fit.marginal_effect("x"),
        lambda fit: fit.to_arviz(rows=True),
        lambda fit: pt.compare({"a": fit, "b": fit}),
    ],
)
def test_what_needs_rows_says_so(ask, federated):
    with pytest.raises(InputError, match=r"The rows of A are not at hand.*pt\.fit"):
        ask(federated)


def test_what_needs_no_rows_is_told_without_them(federated, tmp_path):
    fit = fitted_family("gamma")
    assert [each.nats for each in federated.heterogeneity().sites] == [each.nats for each in fit.heterogeneity().sites]
    assert len(federated.forest("x").axes) == 1
    federated.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert text.count("The rows of A are not at hand") == 2
    assert "Forest plot of x" in text
    assert "For this report" not in text


def test_a_loaded_fit_reads_its_rows_again(tmp_path):
    path = tmp_path / "rows.csv"
    FRAME.to_csv(path, index=False)
    fit = pt.fit(*FAMILIES["gamma"][:1], str(path), sites="site", **FAMILIES["gamma"][1])
    fit.save(tmp_path / "study")
    again = Fit.load(tmp_path / "study")
    assert again.check(draws=DRAWS).score == pytest.approx(fit.check(draws=DRAWS).score, rel=1e-9)
    assert again.loo(draws=DRAWS).free_energy == pytest.approx(fit.loo(draws=DRAWS).free_energy, abs=1e-3)
    path.unlink()
    with pytest.raises(InputError, match="is gone"):
        again.loo()
