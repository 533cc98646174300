"""The paper's equations in NumPy and SciPy alone, for Gaussians and models with a linear predictor f = xᵀθ.

A Gaussian, or a factor of that form, is the pair η = (Λm, Λ) of natural parameters for T(θ) = (θ, −½θθᵀ); the paper's
second parameter −Λ/2 is this one times −½. Λ is a vector where the family is mean-field and a matrix otherwise.
"""

import numpy as np
from scipy.optimize import minimize, root
from scipy.special import expit, logsumexp

SIZES = {1: (30,), 3: (4, 10, 16), 10: (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)}
"""Unequal sizes of 1, 3 and 10 clients that share 30 rows."""


def logistic_data(rows=30, columns=3, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, columns))
    y = generator.uniform(size=rows) < expit(x @ np.linspace(1.5, -1.0, columns))
    return x, y.astype(float)


def linear_data(rows=30, columns=3, noise=0.7, seed=1):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, columns)) @ (np.eye(columns) + 0.5)
    return x, x @ np.linspace(1.5, -1.0, columns) + noise * generator.normal(size=rows)


def divide(x, y, sizes):
    cuts = np.cumsum(sizes)[:-1]
    return list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))


def product(*etas):
    return tuple(sum(parts) for parts in zip(*etas, strict=True))


def power(eta, exponent):
    return tuple(exponent * part for part in eta)


def standard(eta):
    """Mean, and variances or covariance."""
    shift, precision = eta
    if precision.ndim == 1:
        return shift / precision, 1 / precision
    covariance = np.linalg.inv(precision)
    return covariance @ shift, covariance


def log_normaliser(eta):
    shift, precision = eta
    mean, _ = standard(eta)
    log_det = np.sum(np.log(precision)) if precision.ndim == 1 else np.linalg.slogdet(precision)[1]
    return (shift @ mean - log_det + len(shift) * np.log(2 * np.pi)) / 2


def kl(eta, other):
    """∫ q log(q / p) for Gaussians, from the formula with means and covariances."""
    (m, v), (n, w) = standard(eta), standard(other)
    v, w = (np.diag(c) if c.ndim == 1 else c for c in (v, w))
    gap = np.linalg.solve(w, v), (n - m) @ np.linalg.solve(w, n - m)
    return (np.trace(gap[0]) - len(m) + gap[1] + np.linalg.slogdet(w)[1] - np.linalg.slogdet(v)[1]) / 2


def fisher(eta):
    """cov[T(θ)] over the raveled T, by Isserlis' theorem."""
    m, v = standard(eta)
    if v.ndim == 1:
        cross = np.diag(-m * v)
        return np.block([[np.diag(v), cross], [cross, np.diag(v**2 / 2 + m**2 * v)]])
    d = len(m)
    third = -(np.einsum("j,ik->ijk", m, v) + np.einsum("k,ij->ijk", m, v)).reshape(d, d * d) / 2
    pairs = np.einsum("ik,jl->ijkl", v, v) + sum(
        np.einsum(path, m, m, v) for path in ("i,k,jl->ijkl", "i,l,jk->ijkl", "j,k,il->ijkl", "j,l,ik->ijkl")
    )
    fourth = (pairs + np.einsum("il,jk->ijkl", v, v)).reshape(d * d, d * d) / 4
    return np.block([[v, third], [third.T, fourth]])


def project(eta, x):
    """Mean and variance of xᵀθ."""
    mean, variance = standard(eta)
    return x @ mean, x**2 @ variance if variance.ndim == 1 else np.sum((x @ variance) * x, axis=1)


def logistic(mean, variance, y, points=20):
    """E[log p(y | f)] for f ~ N(mean, variance) by Gauss–Hermite, and the sum's derivatives in mean and variance."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(points)
    masses = masses / masses.sum()
    sign, sd = (2 * y - 1)[:, None], np.sqrt(variance)
    f = mean[:, None] + sd[:, None] * nodes
    slope = sign * expit(-sign * f)
    return -np.logaddexp(0, -sign * f) @ masses, slope @ masses, slope @ (masses * nodes) / (2 * sd)


def linear(noise):
    """The same for y ~ N(f, noise²), in closed form."""

    def rows(mean, variance, y):
        value = -np.log(2 * np.pi * noise**2) / 2 - ((y - mean) ** 2 + variance) / (2 * noise**2)
        return value, (y - mean) / noise**2, np.full_like(y, -1 / (2 * noise**2))

    return rows


def ell(eta, x, y, rows):
    """E_q[log p(y | θ)], and its derivatives in the mean and in the variances or covariance of q."""
    value, by_mean, by_variance = rows(*project(eta, x), y)
    if eta[1].ndim == 1:
        return value.sum(), by_mean @ x, by_variance @ x**2
    return value.sum(), by_mean @ x, (x * by_variance[:, None]).T @ x


def free_energy(eta, prior, x, y, rows):
    return ell(eta, x, y, rows)[0] - kl(eta, prior)


def natural_gradient(eta, x, y, rows):
    """d/dμ E_q[log p(y | θ)]: from μ = (m, −½(V + mmᵀ)), d/dμ₁ = d/dm − 2 (d/dV) m and d/dμ₂ = −2 d/dV."""
    mean, _ = standard(eta)
    _, by_mean, by_variance = ell(eta, x, y, rows)
    turned = by_variance * mean if by_variance.ndim == 1 else by_variance @ mean
    return by_mean - 2 * turned, -2 * by_variance


def gradient(eta, context, x, y, rows):
    """d/dη of E_q[log p(y | θ)] − KL(q ‖ context), mean-field, through m = η₁/η₂ and v = 1/η₂."""
    (shift, precision), (mean, _) = eta, standard(eta)
    _, by_mean, by_variance = ell(eta, x, y, rows)
    by_mean = by_mean - (context[1] * mean - context[0])
    by_variance = by_variance - (context[1] - precision) / 2
    return by_mean / precision, -(shift * by_mean + by_variance) / precision**2


def damped_fixed_point(eta, context, x, y, rows, damping):
    """One step (1 − ρ) η + ρ (η_context + d/dμ E_q[log p(y | θ)])."""
    return product(power(eta, 1 - damping), power(context, damping), power(natural_gradient(eta, x, y, rows), damping))


def solve(context, x, y, rows):
    """The mean-field maximiser of E_q[log p(y | θ)] − KL(q ‖ context), by BFGS and then a root of the gradient."""
    d = len(context[0])

    def member(z):
        precision = np.exp(-2 * z[d:])
        return precision * z[:d], precision

    def slope(z):
        eta = member(z)
        by_shift, by_precision = gradient(eta, context, x, y, rows)
        return np.concatenate([eta[1] * by_shift, -2 * (eta[0] * by_shift + eta[1] * by_precision)])

    def loss(z):
        return -free_energy(member(z), context, x, y, rows)

    near = minimize(loss, np.zeros(2 * d), jac=lambda z: -slope(z), method="BFGS")
    exact = root(slope, near.x, tol=1e-13)
    assert np.abs(exact.fun).max() < 1e-10
    return member(exact.x)


def solve_full(prior, x, y, rows, damping=0.5, steps=400):
    """The same with a full covariance, by damped fixed points; the last must not move."""
    eta = prior
    for _ in range(steps):
        before, eta = eta, damped_fixed_point(eta, prior, x, y, rows, damping)
    assert max(np.abs(a - b).max() for a, b in zip(eta, before, strict=True)) < 1e-10
    return eta


def grid(columns, half_width=12.0, points=161):
    """A regular grid over θ and the volume of a cell; sums over it err by exp(−2π²σ²/h²) for a Gaussian of sd σ."""
    axis = np.linspace(-half_width, half_width, points)
    mesh = np.meshgrid(*[axis] * columns, indexing="ij")
    return np.stack(mesh, axis=-1).reshape(-1, columns), (axis[1] - axis[0]) ** columns


def log_factor(eta, theta):
    """⟨η, T(θ)⟩ at each θ."""
    shift, precision = eta
    square = theta**2 @ precision if precision.ndim == 1 else np.sum((theta @ precision) * theta, axis=1)
    return theta @ shift - square / 2


def log_density(eta, theta):
    return log_factor(eta, theta) - log_normaliser(eta)


def log_likelihood(theta, x, y):
    """log p(y | θ) of logistic regression, all rows together, at each θ."""
    return -np.logaddexp(0, -(2 * y - 1) * (theta @ x.T)).sum(axis=1)


def log_integral(log_values, volume):
    return logsumexp(log_values) + np.log(volume)


def mean_field_factor(cavity, x, y, noise):
    """A client's optimal factor for linear regression: (b − O m, diag G), G = XᵀX/σ², O its off-diagonal part."""
    gram, shift = x.T @ x / noise**2, x.T @ y / noise**2
    mean = np.linalg.solve(np.diag(cavity[1]) + gram, cavity[0] + shift)
    return shift - (gram @ mean - np.diag(gram) * mean), np.diag(gram)


def undamped_round(prior, factors, clients, noise):
    """The factors after an undamped synchronous round, for linear regression with a mean-field q."""
    q = product(prior, *factors)
    cavities = [product(q, power(factor, -1)) for factor in factors]
    return [mean_field_factor(cavity, x, y, noise) for cavity, (x, y) in zip(cavities, clients, strict=True)]


def undamped_jacobian(prior, clients, noise):
    """Jacobian of a round's Λm by those of the round before, at fixed precisions: −O_k (D + O_k)⁻¹ in row k.

    D is the diagonal of the posterior's precision, O_k the off-diagonal part of a client's XᵀX/σ². Undamped
    synchronous runs converge where the spectral radius is below 1, damped ones where that of (1 − ρ) I + ρ J is.
    """
    grams = [x.T @ x / noise**2 for x, _ in clients]
    diagonal = np.diag(prior[1] + sum(np.diag(gram) for gram in grams))
    off = [gram - np.diag(np.diag(gram)) for gram in grams]
    blocks = [-o @ np.linalg.inv(diagonal + o) for o in off]
    zero = np.zeros_like(diagonal)
    return np.block([[zero if k == j else block for j in range(len(blocks))] for k, block in enumerate(blocks)])
