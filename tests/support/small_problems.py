"""A small logistic regression, and its optimum from SciPy's L-BFGS on a free energy written in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from partita import FullGaussian, LogisticRegression, MeanFieldGaussian, Table
from partita.data import federate
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.numerics.compiled import Compiled

KEY = jax.random.key(0)
_generator = np.random.default_rng(0)
X = _generator.normal(size=(40, 3))
Y = (_generator.uniform(size=40) < expit(X @ [1.0, -1.0, 0.5])).astype(float)
FAMILIES = {"mean-field": MeanFieldGaussian, "full": FullGaussian}
NODES, MASSES = np.polynomial.hermite_e.hermegauss(20)
MASSES = MASSES / MASSES.sum()


def problem(prior, start=None, model=None, x=X, y=Y, context=None, trust_region=1.0, weights=None):
    shard = federate([Table(x, y)], weights=weights).shards[0]
    dtype = jax.tree.leaves(prior)[0].dtype
    return Problem(
        LogisticRegression() if model is None else model,
        shard,
        Factor.of(prior) if context is None else context,
        jnp.ones((), dtype),
        prior if start is None else start,
        jnp.asarray(trust_region, dtype),
    )


@Compiled
def solve(solver, problem, key):
    return solver.solve(problem, key)


def expected_log_likelihood(x, y, mean, covariance):
    """Σ E log p(y | f), with its gradients in mean and covariance, by the quadrature that the model uses."""
    sd = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
    signs = 1 - 2 * y
    grid = signs[:, None] * (x @ mean + NODES[:, None] * sd).T
    by_f = -signs[:, None] * expit(grid)
    by_variance = by_f @ (MASSES * NODES) / (2 * sd)
    return -np.sum(np.logaddexp(0, grid) @ MASSES), x.T @ (by_f @ MASSES), (x.T * by_variance) @ x


def scipy_optimum(x, y, scale, family, fixed_sd=None):
    """The largest free energy, and the mean and covariance there; over means only where the sds are given."""
    size = x.shape[1]
    lower = np.tril_indices(size) if family == "full" else np.diag_indices(size)
    diagonal = np.flatnonzero(lower[0] == lower[1])

    def unpack(values):
        mean, rest = values[:size], values[size:].copy()
        rest[diagonal] = np.exp(rest[diagonal])
        factor = np.zeros((size, size))
        factor[lower] = rest
        return mean, factor if fixed_sd is None else np.diag(fixed_sd)

    def negative(values):
        mean, factor = unpack(values)
        covariance = factor @ factor.T
        ell, by_mean, by_covariance = expected_log_likelihood(x, y, mean, covariance)
        trace = np.trace(covariance) / scale**2
        log_det = 2 * np.log(np.diag(factor)).sum() - size * np.log(scale**2)
        free_energy = ell - (trace + mean @ mean / scale**2 - size - log_det) / 2
        by_factor = 2 * (by_covariance - np.eye(size) / (2 * scale**2)) @ factor
        by_factor = by_factor[lower]
        by_factor[diagonal] = by_factor[diagonal] * np.diag(factor) + 1
        if fixed_sd is not None:
            by_factor = np.zeros_like(by_factor)
        return -free_energy, -np.concatenate([by_mean - mean / scale**2, by_factor])

    start = np.zeros(size + len(lower[0]))
    start[size + diagonal] = -1.0
    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 20}
    found = minimize(negative, start, jac=True, method="L-BFGS-B", options=options)
    mean, factor = unpack(found.x)
    return -found.fun, mean, factor @ factor.T
