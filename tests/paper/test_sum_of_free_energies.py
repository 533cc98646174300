"""`prop:local-fe-global-fe`: Σ_m F_m(q) + log Z_q = F(q) wherever q = p · Π t_m / Z_q."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from partita import Asynchronous, Damped, FullGaussian, LogisticRegression, Method, Sequential, Synchronous
from partita.families.factor import Factor
from partita.local.objective import local_free_energy, log_partition
from partita.server.bound import partition_free_energy
from support import reference
from support.trajectories import EXACT, FAMILIES, KEY, member, natural, shards, trajectory

MODEL = LogisticRegression()
X, Y = reference.logistic_data()
PARTS = shards(reference.divide(X, Y, reference.SIZES[3]))
METHODS = {
    "sequential": Method(EXACT, Sequential(), Damped()),
    "damped synchronous": Method(EXACT, Synchronous(), Damped(None)),
    "damped asynchronous": Method(EXACT, Asynchronous(), Damped(0.4)),
}


@eqx.filter_jit
def sum_of_local(prior, q, factors):
    local = [local_free_energy(MODEL, s, q, t, KEY) for s, t in zip(PARTS.shards, factors, strict=True)]
    return sum(local) + log_partition(prior, factors)


def assert_sum_is_global(prior, q, factors):
    total = float(sum_of_local(prior, q, tuple(factors)))
    expected = reference.free_energy(natural(q), natural(prior), X, Y, reference.logistic)
    # both sides are sums of terms of size about 20
    assert total == pytest.approx(expected, abs=1e-11)
    assert partition_free_energy(MODEL, PARTS, prior, q, seed=0) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_local_free_energies_sum_to_the_global_one_after_every_step(family, name):
    prior = family.standard_normal(3)
    states = trajectory(METHODS[name], MODEL, prior, PARTS, 5, speeds=(1, 3, 10))
    for state in states:
        assert_sum_is_global(prior, state.posterior, state.factors)
    assert max(abs(float(t.log_scale)) for t in states[-1].factors) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_local_free_energies_sum_to_the_global_one_for_arbitrary_factors(family):
    generator = np.random.default_rng(3)
    prior = family.standard_normal(3)
    factors = []
    for sign in (1, 1, -1):
        root = 0.4 * generator.normal(size=(3, 3))
        precision = root @ root.T if family is FullGaussian else generator.uniform(0.1, 0.3, 3)
        eta = generator.normal(size=3), sign * precision
        factors.append(Factor(member(prior, eta), jnp.asarray(generator.normal(scale=5.0))))
    assert not factors[2].natural.is_proper()
    q = prior * factors[0].natural * factors[1].natural * factors[2].natural
    assert_sum_is_global(prior, q, factors)
