"""Newton's steps in blocks, and in means alone, against full covariance and against the joint steps."""

import numpy as np
import pytest
from scipy.linalg import block_diag

import partita as pt
from partita import FullGaussian, LogisticRegression, MeanFieldGaussian, Newton
from partita.errors import InputError
from partita.families import BlockGaussian
from partita.local.solvers import Outcome, PowerEP
from support.small_problems import KEY, problem, solve

SIZES = (3, 2)
GENERATOR = np.random.default_rng(0)
APART = block_diag(GENERATOR.normal(size=(24, 3)), GENERATOR.normal(size=(16, 2)))
"""Every row has the columns of one block, so that the full posterior is exactly one of blocks."""
Y = (GENERATOR.uniform(size=40) < 0.5).astype(float)
MIXED = GENERATOR.normal(size=(40, 5)) + 0.7 * GENERATOR.normal(size=(40, 1))
TIGHT = Newton(tolerance=1e-13)
ALONE = Newton(tolerance=1e-13, together=0)


def solved(solver, prior, x=APART):
    found = solve(solver, problem(prior, x=x, y=Y), KEY)
    assert Outcome(int(found.outcome)) in (Outcome.CONVERGED, Outcome.STALLED)  # where rounding hides what is left
    return found


def same(found, expected, tolerance=1e-6):
    """Natural parameters to the root of the tolerance of a solver, and free energies to rounding."""
    np.testing.assert_allclose(found.free_energy, expected.free_energy, rtol=1e-11)
    for name in ("precision_mean", "matrix"):
        one, other = (np.asarray(v() if callable(v := getattr(each.q, name)) else v) for each in (found, expected))
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("solver", [ALONE, pytest.param(TIGHT, marks=pytest.mark.slow)], ids=["alone", "together"])
def test_where_blocks_share_no_rows_the_answer_is_that_of_full_covariance(solver):
    same(solved(solver, BlockGaussian.standard_normal(SIZES)), solved(solver, FullGaussian.standard_normal(5)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior",
    [FullGaussian.standard_normal(5), BlockGaussian.standard_normal(SIZES), MeanFieldGaussian.standard_normal(5)],
)
def test_means_alone_and_then_precisions_reach_the_optimum_of_joint_steps(prior):
    same(solved(ALONE, prior, MIXED), solved(TIGHT, prior, MIXED))


@pytest.mark.slow
def test_more_covariances_have_a_higher_free_energy():
    priors = [
        MeanFieldGaussian.standard_normal(5),
        BlockGaussian.standard_normal(SIZES),
        FullGaussian.standard_normal(5),
    ]
    found = [float(solved(TIGHT, prior, MIXED).free_energy) for prior in priors]
    assert found[0] < found[1] < found[2]


def fitted(prior, clients, x=MIXED):
    parts = pt.split(pt.Table(x, Y), np.array_split(np.arange(40), clients))
    method, monitor = pt.methods.sequential(TIGHT), pt.Monitor(every=0, progress=False)
    return pt.run(method, LogisticRegression(), prior, parts, rounds=60, tolerance=1e-13, monitor=monitor)


@pytest.mark.slow
def test_a_run_of_three_sites_in_one_block_is_that_of_full_covariance():
    """The same numbers through the same steps: they differ by rounding."""
    block, full = (fitted(prior, 3) for prior in (BlockGaussian.standard_normal([5]), FullGaussian.standard_normal(5)))
    np.testing.assert_allclose(block.posterior.q.matrix(), full.posterior.q.matrix(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        block.posterior.q.precision_mean, full.posterior.q.precision_mean, rtol=1e-10, atol=1e-10
    )


@pytest.mark.slow
def test_three_sites_and_one_have_the_same_posterior():
    three, one = (fitted(BlockGaussian.standard_normal(SIZES), clients).posterior.q for clients in (3, 1))
    assert float(three.kl(one)) < 1e-6
    np.testing.assert_allclose(three.mean, one.mean, atol=1e-6)
    np.testing.assert_allclose(three.sd, one.sd, atol=1e-6)


def test_power_ep_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="no sites in blocks"):
        PowerEP().init(problem(BlockGaussian.standard_normal([3])), KEY)
