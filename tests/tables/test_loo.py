"""Leave-one-out cross-validation and k: against ArviZ on the same draws, and against fits that leave rows out."""

import jax
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats

import partita as pt
import partita.tables.fitted as fitted_module
from partita.errors import InputError
from partita.tables.draws import draws_of, log_densities
from partita.tables.fitted import rows_at, rows_of
from partita.tables.loo import joint_ratios, pointwise
from support.patients import PATIENTS, fitted

DRAWS = 400


def densities(fit, theta):
    """log p(y_n | θ_s) of all rows, in the response's own unit."""
    model = fit.result.posterior.model
    pieces = [piece for rows in rows_of(fit).values() for piece, _ in log_densities(model, rows, theta)]
    return np.concatenate(pieces)


@pytest.mark.parametrize("family", ["bernoulli", pytest.param("poisson", marks=pytest.mark.slow), "gaussian"])
def test_elpd_and_k_are_those_of_arviz_on_the_same_draws(family):
    fit = fitted(family)
    theta, ratios = joint_ratios(fit, rows_of(fit), DRAWS, 0)
    found = fit.loo(DRAWS)
    q = fit.result.posterior.q
    log_q = np.asarray(jax.vmap(q.log_prob)(theta))
    expected = [
        array_stats.loo_approximate_posterior(row[None], (ratios + log_q)[None], log_q[None])
        for row in densities(fit, theta)
    ]
    elpd, shapes, effective = (np.array(part) for part in zip(*expected, strict=True))
    assert found.elpd == pytest.approx(elpd.sum(), rel=1e-9)
    assert found.se == pytest.approx(np.std(elpd) * np.sqrt(len(elpd)), rel=1e-9)
    assert found.effective == pytest.approx(effective.sum(), rel=1e-6)
    assert max(site.shape for site in found.sites.values()) == pytest.approx(shapes.max(), rel=1e-6)
    assert found.rows == len(PATIENTS)
    if np.ptp(ratios) > 1e-6:
        weights, shape = array_stats.psislw(-ratios)
        assert found.shape == pytest.approx(float(shape), rel=1e-6)
        assert found.efficiency == pytest.approx(1 / np.sum(np.exp(weights) ** 2) / DRAWS, rel=1e-6)
    assert found.trusted


def test_without_the_correction_it_is_plain_psis_loo():
    fit = fitted("bernoulli")
    theta = draws_of(fit.result.posterior.q, DRAWS, 1)
    model = fit.result.posterior.model
    pieces = [piece for rows in rows_of(fit).values() for piece in pointwise(model, rows, theta, np.zeros(DRAWS))]
    expected = [array_stats.loo(row[None])[:2] for row in densities(fit, theta)]
    elpd, shapes = (np.array(part) for part in zip(*expected, strict=True))
    np.testing.assert_allclose(np.concatenate([piece[0] for piece in pieces]), elpd, rtol=1e-9)
    np.testing.assert_allclose(np.concatenate([piece[2] for piece in pieces]), shapes, rtol=1e-6, atol=1e-9)


def test_for_a_conjugate_model_it_is_exact():
    """q is exact, so that k is that of equal weights, the evidence is the free energy, and rows that are left out have
    a closed predictive density; the noise stays as learned."""
    fit = fitted("gaussian")
    found = fit.loo(1000)
    model, q = fit.result.posterior.model, fit.result.posterior.q
    assert found.shape < 0.5
    assert found.evidence == pytest.approx(found.free_energy, abs=0.02)
    mean, covariance = np.asarray(q.mean), np.asarray(q.covariance)
    noise, exact = float(model.noise), 0.0
    for rows in rows_of(fit).values():
        x, y = (np.asarray(leaf) for leaf in rows.data)
        wide = np.einsum("nd,de,ne->n", x, covariance, x)
        share = wide / noise**2
        without = (x @ mean - share * y) / (1 - share)
        exact += stats.norm.logpdf(y, without, np.sqrt(noise**2 + wide / (1 - share))).sum()
    exact -= len(PATIENTS) * np.log(fit.response.sd)
    assert found.elpd == pytest.approx(exact, abs=0.05)


@pytest.mark.slow
def test_q_that_is_too_narrow_has_a_large_k():
    """Mean-field q of four columns that are nearly one."""
    generator = np.random.default_rng(1)
    near = {name: PATIENTS.age + generator.normal(0, 0.5, len(PATIENTS)) for name in "abc"}
    narrow = pt.fit("pressure ~ age + a + b + c", PATIENTS.assign(**near), covariance="mean-field").loo(DRAWS)
    assert narrow.shape > 0.7
    assert narrow.efficiency < 0.5
    assert "not to be trusted" in repr(narrow)


def test_a_row_is_left_out_with_its_weight():
    """Of weight 2 its density is squared, and of weight 0 it counts nothing."""
    fit = fitted("bernoulli")
    theta = draws_of(fit.result.posterior.q, DRAWS, 1)
    model, rows = fit.result.posterior.model, rows_of(fit)["York"]
    (piece, _) = next(log_densities(model, rows, theta))
    doubled, none = (
        next(pointwise(model, rows._replace(weights=weight * rows.weights), theta, np.zeros(DRAWS)))[0]
        for weight in (2, 0)
    )
    np.testing.assert_allclose(doubled, [array_stats.loo(2 * row[None])[0] for row in piece], rtol=1e-9)
    np.testing.assert_allclose(none, 0, atol=1e-12)


def test_fits_are_compared_by_differences_of_rows():
    fits = {"wide": fitted("bernoulli"), "narrow": fitted("bernoulli", prior="normal(0, 0.01)")}
    found = pt.compare(fits, draws=DRAWS)
    assert [row.name for row in found.rows] == ["wide", "narrow"]
    rows = []
    for fit in fits.values():
        theta, ratios = joint_ratios(fit, rows_of(fit), DRAWS, 0)
        model = fit.result.posterior.model
        rows.append(
            np.concatenate([p[0] for each in rows_of(fit).values() for p in pointwise(model, each, theta, ratios)])
        )
    gap = rows[0] - rows[1]
    best, other = found.rows
    assert other.behind == pytest.approx(gap.sum(), rel=1e-9)
    assert other.se == pytest.approx(np.sqrt(len(gap)) * np.std(gap), rel=1e-9)
    assert (best.behind, best.se) == (0, 0)
    energies = [fit.result.free_energy for fit in fits.values()]
    assert [best.evidence_behind, other.evidence_behind] == pytest.approx([max(energies) - each for each in energies])
    assert "narrow" in repr(found)


@pytest.mark.parametrize(
    ("fits", "said"),
    [
        (lambda: {"a": fitted("bernoulli")}, "two fits"),
        (lambda: [fitted("bernoulli")] * 2, "dict"),
        (lambda: {"a": fitted("bernoulli"), "b": 3}, "'b'"),
        (lambda: {"a": fitted("bernoulli"), "b": fitted("gaussian")}, "one response"),
        (lambda: {"a": fitted("gaussian"), "b": fitted("gaussian").without("York")}, "different rows"),
    ],
)
def test_what_cannot_be_compared_is_refused(fits, said):
    with pytest.raises(InputError, match=said):
        pt.compare(fits())


def test_a_site_makes_its_rows_once(monkeypatch):
    """Whatever it is asked about them."""
    made = []
    monkeypatch.setattr(fitted_module, "rows_at", lambda spec, site: made.append(site.name) or rows_at(spec, site))
    fitted("bernoulli").loo(draws=50)
    assert sorted(made) == ["Hull", "Leeds", "York"]
