"""Fits whose covariance has blocks: which columns share one, and what is said of it."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

import partita as pt
from partita.families import BlockGaussian, FullGaussian
from partita.families.factor import Factor
from partita.local.solvers.newton import with_precision
from partita.server.state import init
from partita.stream import Batch
from partita.tables import spec as spec_module
from partita.tables.agreement import agreed
from partita.tables.blocks import block_sizes
from partita.tables.drift import drift_of
from partita.tables.reading import frame_of, sites_of
from partita.tables.spec import Settings, Spec

GENERATOR = np.random.default_rng(0)
ROWS = 240
FRAME = pandas.DataFrame(
    {
        "age": GENERATOR.normal(60, 12, ROWS),
        "bmi": GENERATOR.normal(26, 4, ROWS),
        "ward": GENERATOR.choice(list("abcde"), ROWS),
        "site": GENERATOR.choice(["Hull", "York"], ROWS),
    }
).assign(pressure=lambda frame: 90 + 0.5 * frame.age + GENERATOR.normal(0, 9, ROWS))
FORMULA = "pressure ~ age + C(ward) + bs(bmi, df=4)"


def made(formula, **settings):
    given = Settings(formula, **settings)
    return Spec(given, agreed(given.begun, sites_of(frame_of(FRAME), given.columns, None)))


@pytest.mark.parametrize(
    ("widths", "sizes"),
    [
        ((1, 1, 4, 4), (10,)),
        ((1, *[1] * 499), (200, 200, 100)),
        ((1, 150, 60, 100, 50), (151, 160, 50)),
        ((1, 300, 100, 100, 199, 2), (1, 300, 200, 201)),
        ((1, 1999), (1, 500, 500, 500, 499)),
        ((600,), (300, 300)),
    ],
)
def test_a_term_stays_in_one_block_of_at_most_500_columns(widths, sizes):
    assert block_sizes(widths) == sizes
    assert sum(sizes) == sum(widths)


def test_terms_have_their_columns_in_the_order_of_the_design():
    design = made(FORMULA).design
    assert design.widths == (1, 1, 4, 4)
    assert sum(design.widths) == len(design.names)


def test_blocks_are_the_default_beyond_500_columns_and_mean_field_only_on_request(monkeypatch):
    assert made(FORMULA).covariance == "full"
    monkeypatch.setattr(spec_module, "_MOST_FULL", 9)
    wide = made(FORMULA)
    assert wide.covariance == "block"
    with jax.enable_x64(True):
        prior = wide.prior()
    assert isinstance(prior, BlockGaussian)
    assert prior.sizes == (10,)
    assert made(FORMULA, covariance="mean-field").covariance == "mean-field"
    assert made(FORMULA, covariance="full").covariance == "full"


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of at most five columns: the intercept with age; ward; bmi."""
    monkeypatch.setattr("partita.tables.blocks._USUAL", 4)


@pytest.mark.slow
def test_a_fit_in_blocks_has_no_covariance_across_them_and_says_so(small_blocks):
    """A Gaussian response, whose posterior precision is known: its blocks are those of XᵀX/σ² and the prior."""
    fit = pt.fit(FORMULA, FRAME, sites="site", covariance="block")
    q = fit.result.posterior.q
    assert q.sizes == (2, 4, 4)
    with jax.enable_x64(True):
        x = np.concatenate([np.asarray(shard.data.x)[np.asarray(shard.weights) > 0] for shard in fit.partition.shards])
        prior, found = np.asarray(fit.prior.matrix()), np.asarray(q.matrix())
    exact = prior + x.T @ x / float(fit.result.posterior.model.noise) ** 2
    np.testing.assert_allclose(found, np.where(found != 0, exact, 0), rtol=1e-6, atol=1e-6 * np.abs(exact).max())
    assert np.count_nonzero(found) == 4 + 16 + 16
    assert fit.covariance.shape == (10, 10)
    assert fit.covariance[1, 3] == 0
    full = FullGaussian(q.precision_mean, exact, None).precision
    wider = np.sqrt(np.diag(np.linalg.inv(full))) / np.asarray(q.sd)
    with jax.enable_x64(False):  # as in a program that has not asked JAX for double precision
        said = [note for note in fit.notes if "in 3 independent blocks" in note]
        assert len(fit.drift().batches) == len(fit.heterogeneity().sites) == 2
    assert bool(said) == bool((wider > 1.2).any())


def test_a_drift_in_blocks_is_that_of_full_covariance_with_the_same_matrix():
    """From factors alone: what a batch says, and what the others do, in two blocks."""
    sizes, generator = (2, 1), np.random.default_rng(1)
    matrices = [np.array([[3.0, 1.0, 0], [1.0, 2.0, 0], [0, 0, 1.5 + k]]) for k in range(3)]
    shifts = generator.normal(size=(3, 3))
    batches = [Batch(f"batch {k}", 10, k, 0.0, 0.0, 0.0) for k in range(3)]
    with jax.enable_x64(True):
        block, full = BlockGaussian.standard_normal(sizes), FullGaussian.standard_normal(3)
        found = []
        for prior in (block, full):
            pairs = zip(shifts, matrices, strict=True)
            said = [with_precision(prior, jnp.asarray(mean), prior.cut(jnp.asarray(matrix))) for mean, matrix in pairs]
            state = init(prior, [batch.name for batch in batches], 0, pt.Damped())
            factors = tuple(Factor(each, jnp.zeros(())) for each in said)
            found.append(drift_of(dataclasses.replace(state, factors=factors), batches))
    assert [each.name for each in found[0].batches] == ["batch 1", "batch 2"]
    for one, other in zip(*(each.batches for each in found), strict=True):
        assert (one.nats, one.probability) == pytest.approx((other.nats, other.probability), rel=1e-10)
        assert one.expected == other.expected == 1.5


@pytest.mark.parametrize(
    ("covariance", "told"), [("block", "in 4 independent blocks"), ("mean-field", "of independent")]
)
def test_a_fit_with_a_shape_says_what_is_independent(covariance, told, small_blocks):
    spec = made(FORMULA, family="gamma", covariance=covariance)
    with jax.enable_x64(True):
        result = SimpleNamespace(posterior=SimpleNamespace(model=spec.model()))
    fit = pt.Fit(spec, (), pt.Partition((), (), ()), result)
    assert told in fit.caveat("use another")
