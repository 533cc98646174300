"""Checks: calibrated where the model is true, telling where it is not, and silent about few rows."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import partita as pt
from partita.errors import InputError
from partita.tables.fitted import rows_of
from partita.tables.reading import Site
from support.patients import FORMULAS, PATIENTS, fitted


def test_simulated_quantities_have_the_distribution_of_the_model():
    """Mean and sd of counts against what scipy's Poisson says at the posterior mean, within Monte Carlo error."""
    fit = fitted("poisson")
    found = fit.check(draws=400).sites["York"]
    frame = PATIENTS[PATIENTS.hospital == "York"]
    rate = fit.predict(frame)
    told = {each.name: each for each in found.quantities}
    assert list(told) == ["mean", "sd", "share of zeros", "maximum"]
    assert told["mean"].observed == pytest.approx(frame.visits.mean())
    assert told["sd"].observed == pytest.approx(frame.visits.std())
    assert told["share of zeros"].observed == pytest.approx((frame.visits == 0).mean())
    assert told["mean"].expected == pytest.approx(rate.mean(), abs=0.04)
    assert told["share of zeros"].expected == pytest.approx(stats.poisson.pmf(0, rate).mean(), abs=0.02)
    assert told["maximum"].observed is None
    assert all(0.01 < each.p < 0.99 for each in told.values())


def test_quantities_are_in_the_units_of_the_response():
    told = {each.name: each for each in fitted("gaussian").check().sites["Hull"].quantities}
    own = PATIENTS.pressure[PATIENTS.hospital == "Hull"]
    assert list(told) == ["mean", "sd", "maximum"]
    assert told["mean"].observed == pytest.approx(own.mean())
    assert told["mean"].low < own.mean() < told["mean"].high
    assert told["sd"].low < own.std() < told["sd"].high


def test_the_log_score_is_the_log_of_the_mean_density():
    """For a Gaussian response the predictive density is known."""
    fit = fitted("gaussian")
    model, q = fit.result.posterior.model, fit.result.posterior.q
    rows = rows_of(fit)["Leeds"]
    x, y = (np.asarray(leaf) for leaf in rows.data)
    wide = np.sqrt(np.einsum("nd,de,ne->n", x, np.asarray(q.covariance), x) + float(model.noise) ** 2)
    exact = stats.norm.logpdf(y, x @ np.asarray(q.mean), wide).mean() - np.log(fit.response.sd)
    assert fit.check(400).sites["Leeds"].score == pytest.approx(exact, abs=0.003)


def test_groups_of_a_binary_response_are_expected_and_observed_shares():
    fit = fitted("bernoulli")
    found = fit.check()
    frame = PATIENTS[PATIENTS.hospital == "Hull"]
    groups = found.sites["Hull"].calibration
    assert sum(group.rows for group in groups) == len(frame)
    order = np.argsort(fit.predict(frame), kind="stable")
    first = order[: groups[0].rows]
    assert groups[0].expected == pytest.approx(fit.predict(frame)[first].mean(), abs=0.02)
    shares = [group.observed for group in groups if group.observed is not None]
    assert np.average(shares) == pytest.approx(frame.died.mean(), abs=0.1)
    (share,) = found.sites["Hull"].quantities
    assert share.observed == pytest.approx(frame.died.mean())
    assert "share of 1" in repr(found)


def test_ranks_are_even_and_intervals_cover_where_the_model_is_true():
    for family in ("gaussian", "poisson"):
        for name, site in fitted(family).check().sites.items():
            counts = [0 if count is None else count for count in site.ranks]
            assert stats.chisquare(np.array(counts) + 1e-9, np.full(10, np.sum(counts) / 10)).pvalue > 1e-3, name
            for group in site.coverage:
                if group.observed is not None:
                    error = np.sqrt(group.expected * (1 - group.expected) / group.rows)
                    assert abs(group.observed - group.expected) < 4 * error


def test_counts_that_vary_too_much_are_found():
    frame = PATIENTS.assign(visits=np.random.default_rng(0).negative_binomial(0.5, 0.1, 420))
    found = pt.fit(FORMULAS["poisson"], frame, family="poisson", sites="hospital").check()
    assert any("sd at" in note or "zeros at" in note for note in found.notes)
    assert all(each.p < 0.01 for site in found.sites.values() for each in site.quantities if each.name == "sd")


def test_few_rows_are_not_told():
    """Of a site with four rows nothing, and of three deaths not even that they are three."""
    fit = fitted("bernoulli")
    columns = {name: values[:104] for name, values in fit.sites[0].columns.items()} | {
        "died": np.repeat([0.0, 1], [101, 3])
    }
    small, large = ({name: values[part] for name, values in columns.items()} for part in (slice(4), slice(4, None)))
    found = dataclasses.replace(fit, sites=(Site("small", small, 4, 0), Site("large", large, 100, 0))).check()
    assert found.sites["small"].score is None
    assert found.sites["small"].quantities == ()
    assert found.sites["large"].quantities[0].observed is None
    assert found.sites["large"].quantities[0].p is None
    assert all(group.observed is None for group in found.sites["large"].calibration)
    text = repr(found)
    assert "< 5" in text
    assert "not reported" in text


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_it_is_drawn(family, tmp_path):
    figure = fitted(family).check().draw(tmp_path / "check.png")
    assert len(figure.axes) == 3
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_one_sentence():
    with pytest.raises(InputError, match="draws"):
        fitted("gaussian").check(draws=1)
