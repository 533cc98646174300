"""Heterogeneity: its distribution where sites agree, Cochran's Q, and what it says of a site that differs."""

import numpy as np
import pandas
import pytest
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

import partita as pt
from partita.tables.heterogeneity import compared
from support.patients import PATIENTS, fitted


def simulated(generator, precisions):
    """Sites that agree: θ from the prior, and of each site a Gaussian likelihood of it."""
    size = precisions[0].shape[1]
    start = np.eye(size) / 4
    theta = generator.normal(size=size) * 2
    shifts = [rows.T @ rows @ theta + rows.T @ generator.normal(size=len(rows)) for rows in precisions]
    sites = [(rows.T @ rows, shift) for rows, shift in zip(precisions, shifts, strict=True)]

    def moments(without=None):
        kept = [site for place, site in enumerate(sites) if place != without]
        covariance = np.linalg.inv(start + sum(precision for precision, _ in kept))
        return covariance @ sum(shift for _, shift in kept), covariance

    names = [f"site {place}" for place in range(len(sites))]
    others = {name: moments(place) for place, name in enumerate(names)}
    return compared(names, moments(), others, (np.zeros(size), np.linalg.inv(start)))


def told(precisions, count=300):
    generator = np.random.default_rng(0)
    return [simulated(generator, precisions) for _ in range(count)]


def precision(generator, size, rank=None):
    """A root of it: as many rows as its rank, or enough."""
    return generator.normal(size=(rank or size + 3, size))


def test_where_sites_agree_it_has_a_chi_square_distribution():
    """Of 300 simulated studies; a wrong number of degrees of freedom, or the prior counted twice, has p below 1e-10."""
    generator = np.random.default_rng(1)
    found = told([precision(generator, 3) for _ in range(4)])
    for place in range(4):
        values = [2 * each.sites[place].nats for each in found]
        assert stats.kstest(values, stats.chi2(3).cdf).pvalue > 0.01
        assert stats.kstest([each.sites[place].p for each in found], "uniform").pvalue > 0.01
    assert stats.kstest([2 * each.nats for each in found], stats.chi2(9).cdf).pvalue > 0.01
    assert found[0].expected == 4.5
    assert np.mean([each.sites[0].nats for each in found]) == pytest.approx(found[0].sites[0].expected, rel=0.15)


def test_a_site_that_tells_of_fewer_directions_is_compared_in_those():
    generator = np.random.default_rng(2)
    found = told([precision(generator, 3, rank=1), precision(generator, 3), precision(generator, 3)])
    assert {each.sites[0].directions for each in found} == {1}
    assert stats.kstest([2 * each.sites[0].nats for each in found], stats.chi2(1).cdf).pvalue > 0.01
    assert stats.kstest([2 * each.nats for each in found], stats.chi2(4).cdf).pvalue > 0.01


@pytest.mark.slow
def test_of_one_coefficient_it_is_cochrans_q():
    """Under a vague prior; estimates and variances of the sites by another program's meta-analysis."""
    generator = np.random.default_rng(4)
    frame = pandas.DataFrame(
        {"y": generator.normal(size=60) + np.repeat([0.0, 0.5, 2.0], 20), "site": np.repeat(["a", "b", "c"], 20)}
    )
    fit = pt.fit("y ~ 1", frame, sites="site", prior="normal(0, 1000)")
    alone = [each["alone"] for each in fit.by_site("Intercept").values()]
    expected = combine_effects(*np.array([(mean, sd**2) for mean, sd in alone]).T, method_re="dl")
    found = fit.heterogeneity()
    assert 2 * found.nats == pytest.approx(expected.q, rel=1e-3)
    assert found.expected == 1.0
    assert found.p == pytest.approx(stats.chi2.sf(expected.q, 2), rel=1e-2)
    mean, sd = fit.by_site("Intercept")["c"]["alone"]
    rest, wide = fit.by_site("Intercept")["c"]["without"]
    assert 2 * found.sites[2].nats == pytest.approx((mean - rest) ** 2 / (sd**2 + wide**2), rel=1e-3)


def test_divergences_are_those_of_the_members():
    fit = fitted("gaussian")
    factors = dict(zip(fit.result.state.names, fit.result.state.factors, strict=True))
    for each in fit.heterogeneity().sites:
        others = fit.leaving_out()[each.name]
        assert each.kl == pytest.approx(float((fit.prior * factors[each.name].natural).kl(others)), rel=1e-6)
        assert each.moved == pytest.approx(float(fit.result.posterior.q.kl(others)), rel=1e-6)


def test_a_site_that_differs_is_found_and_printed():
    strange = PATIENTS.hospital == "York"
    frame = PATIENTS.assign(pressure=np.where(strange, 240 - PATIENTS.pressure, PATIENTS.pressure))
    found = pt.fit("pressure ~ age + sex", frame, sites="hospital").heterogeneity()
    worst = max(found.sites, key=lambda each: each.nats)
    assert worst.name == "York"
    assert worst.p < 1e-4
    text = repr(found)
    assert "York" in text
    assert "all together" in text
    assert fitted("gaussian").heterogeneity().p > 0.01


def test_one_site_has_nobody_to_be_compared_with():
    start, whole = (np.zeros(2), np.eye(2)), (np.ones(2), np.eye(2) / 3)
    found = compared(["only"], whole, {"only": start}, start)
    assert found.nats is None
    assert len(found.sites) == 1
