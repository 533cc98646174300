"""A client's end of a federation, and how its answers are read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import FullGaussian
from partita.engines.endpoint import read_reply, reply_message
from partita.families import Gamma, NormalGamma, Product
from partita.families.factor import Factor
from partita.families.log_normal import LogNormal
from partita.local.client import Info, Reply

GAUSSIAN = FullGaussian.from_mean_covariance(jnp.array([1.0, 0.0]), jnp.array([[1.0, 0.4], [0.4, 0.6]]))
NORMAL_GAMMA = NormalGamma.from_parameters(np.array([0.3, -1.0]), np.array([[0.4, 0.1], [0.1, 0.2]]), 4.0, 2.5)
FAMILIES = {
    "full Gaussian": GAUSSIAN,
    "normal-gamma": NORMAL_GAMMA,
    "log-normal": LogNormal.of(GAUSSIAN),
    "product": Product(joint=NORMAL_GAMMA, inner=Product(level=GAUSSIAN), noise=Gamma.from_shape_rate(2.0, 3.0)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_is_symmetrised_and_otherwise_unchanged(name):
    """Cholesky factors do not see it; products with the matrix do."""
    honest, ends = Factor(FAMILIES[name], jnp.asarray(0.5)), [jnp.asarray(value) for value in (0.0, 0.0, 0.0, 0.0)]
    info = Info(*ends, steps=jnp.asarray(1), skipped=jnp.asarray(0), outcome=jnp.asarray(1), finite=jnp.asarray(True))
    twist = 1e3 * np.array([[0.0, 1.0], [-1.0, 0.0]])
    sent = jax.tree.map(lambda leaf: leaf + twist if leaf.ndim == 2 else leaf, honest)
    found = read_reply(reply_message({}, Reply(sent, info, {})), honest, {}).delta
    # the twist is 1e3 times as large as the precision, whose last three digits it takes
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, honest)
