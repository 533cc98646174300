"""Natural gradients in some leaves while the others stay, against the dense Fisher matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from partita import FullGaussian, InputError, MeanFieldGaussian
from partita.families import Dirichlet, Family, Gamma, LogNormal, NormalGamma, Product

GENERATOR = np.random.default_rng(0)
ROOT = GENERATOR.normal(size=(3, 3)) + 2 * np.eye(3)
MEAN = np.array([0.4, -1.0, 2.0])
FULL = FullGaussian.from_mean_covariance(MEAN, ROOT @ ROOT.T)
MEAN_FIELD = MeanFieldGaussian.from_mean_sd(
    {"a": jnp.asarray(MEAN), "b": jnp.asarray(0.7)}, {"a": jnp.array([0.5, 2.0, 1.0]), "b": jnp.asarray(3.0)}
)
GAMMA = Gamma.from_shape_rate(np.array([0.7, 30.0]), 2.0)
FAMILIES = {
    "full": FULL,
    "mean-field": MEAN_FIELD,
    "gamma": GAMMA,
    "log-normal": LogNormal.of(MeanFieldGaussian.from_mean_sd(jnp.asarray(MEAN), 0.5)),
    "normal–gamma": NormalGamma.from_parameters(MEAN, ROOT @ ROOT.T, 5.0, 2.0),
    "product": Product(z=MEAN_FIELD, a=GAMMA, d=Dirichlet.from_concentration(np.array([1.0, 2.0]))),
}


def some_direction(q):
    """A natural gradient: where a matrix is symmetric so is its gradient."""
    leaves, treedef = jax.tree.flatten(q)
    drawn = [jnp.asarray(GENERATOR.normal(size=leaf.shape)) for leaf in leaves]
    return jax.tree.unflatten(treedef, [d + d.T if d.ndim == 2 and d.shape[0] == d.shape[1] else d for d in drawn])


def choices(leaves):
    """One free leaf, or all but one."""
    one = np.eye(leaves, dtype=bool)
    return [tuple(row) for row in np.concatenate([one, ~one]).tolist()]


@pytest.mark.parametrize("q", FAMILIES.values(), ids=FAMILIES.keys())
def test_the_restricted_direction_keeps_the_gradient_in_the_free_leaves(q):
    """(F d)_B = (F g)_B with d = 0 outside of B, for one free leaf B and for all but one."""
    fisher, direction = q.fisher(), some_direction(q)
    leaves, treedef = jax.tree.flatten(q)
    for free in choices(len(leaves)):
        found = q.restricted(direction, jax.tree.unflatten(treedef, free))
        inside = np.concatenate([np.full(leaf.size, kept) for leaf, kept in zip(leaves, free, strict=True)])
        flat, gradient = ravel_pytree(found)[0], fisher @ ravel_pytree(direction)[0]
        np.testing.assert_array_equal(flat[~inside], 0)
        # Fisher matrices here have condition numbers up to 1e6.
        np.testing.assert_allclose((fisher @ flat)[inside], gradient[inside], rtol=1e-8, atol=1e-8)
        if not q.is_split(jax.tree.unflatten(treedef, free)):
            np.testing.assert_array_equal(flat[inside], ravel_pytree(direction)[0][inside])


@pytest.mark.parametrize("q", [FULL, MEAN_FIELD], ids=["full", "mean-field"])
def test_closed_forms_are_the_dense_ones(q):
    leaves, treedef = jax.tree.flatten(q)
    direction = some_direction(q)
    for free in choices(len(leaves)):
        mask = jax.tree.unflatten(treedef, free)
        found, dense = q.restricted(direction, mask), Family.restricted(q, direction, mask)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), found, dense)


def test_too_large_a_dense_matrix_is_refused():
    q = NormalGamma.from_parameters(np.zeros(50), np.eye(50), 2.0, 1.0)
    free = jax.tree.unflatten(jax.tree.structure(q), (False, False, True, False))
    with pytest.raises(InputError, match="2552 parameters are too many to be moved alone"):
        q.restricted(q, free)
