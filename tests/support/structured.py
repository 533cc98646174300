"""The free energy of structured VI with intercepts of groups in groups, written out for any optimiser."""

import jax
import jax.numpy as jnp
import numpy as np


def structured(case):
    """The free energy of q(θ) and conditionals of all groups as a function, a start, and bounds of its arguments.

    Nothing of the package's is used but the case's rows: θ and the variables on the way to an innermost group are one
    Gaussian, conditioned on s by its covariance matrix.
    """
    levels = len(case.model.effects)
    group = np.asarray(case.table.group).reshape(len(case.table.y), levels)
    keys = [np.unique(group[:, : level + 1], axis=0, return_inverse=True) for level in range(levels)]
    counts = [len(each) for each, _ in keys]
    whose = [place.ravel() for _, place in keys]
    ends = whose[-1]
    first = np.array([np.flatnonzero(ends == g)[0] for g in range(counts[-1])])
    lines = np.stack([place[first] for place in whose], axis=1)  # of every innermost group, itself and those around
    x, y = (np.asarray(each).reshape(counts[-1], -1, *np.shape(each)[1:]) for each in (case.table.x, case.table.y))
    d = 2 + levels
    nodes, masses = np.polynomial.hermite_e.hermegauss(12)
    inner, inner_masses = np.polynomial.hermite_e.hermegauss(20)
    masses, inner_masses = masses / masses.sum(), inner_masses / inner_masses.sum()
    grid = jnp.asarray(np.stack(np.meshgrid(*[nodes] * levels), -1).reshape(-1, levels))
    weight = jnp.asarray(np.prod(np.stack(np.meshgrid(*[masses] * levels), -1).reshape(-1, levels), axis=1))
    shapes = [(d,), (d * (d + 1) // 2,)]
    for level, count in enumerate(counts):
        shapes += [(count,), (count, d + level), (count,), (count,)]
    prior_mean, prior_sd = np.array([0, 0] + [-0.5] * levels), np.array([2, 2] + [1.0] * levels)

    def value(parameters):
        parts = jnp.split(parameters, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        mean, lower, *rest = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        root = jnp.zeros((d, d)).at[jnp.tril_indices(d)].set(lower)
        root = jnp.tril(root, -1) + jnp.diag(jnp.exp(jnp.diagonal(root)))
        covariance = root @ root.T
        tau_at = mean[2:] + grid @ jnp.linalg.cholesky(covariance[2:, 2:]).T

        def line(places, x, y):
            # the joint Gaussian of θ and the variables on the way to an innermost group
            whole, middle, powers, entropies = covariance, mean, [], []
            for level, place in enumerate(places):
                at, slope, log_variance, power = (leaf[place] for leaf in rest[4 * level : 4 * level + 4])
                across = whole @ slope
                corner = jnp.exp(log_variance) + slope @ across
                whole = jnp.block([[whole, across[:, None]], [across[None], corner[None, None]]])
                middle = jnp.append(middle, at)
                powers.append(power)
                entropies.append((1 + jnp.log(2 * jnp.pi) + log_variance) / 2)
            gain = jnp.linalg.solve(whole[2:d, 2:d], whole[2:d]).T
            left = whole - gain @ whole[2:d]

            def given(s):
                here = middle + gain @ (s - mean[2:])
                tau = jnp.log1p(jnp.exp(s))
                scale = tau ** jnp.stack(powers)
                way = jnp.concatenate([x, jnp.zeros((len(x), levels)), jnp.broadcast_to(scale, (len(x), levels))], 1)
                spread = jnp.sqrt(jnp.sum((way @ left) * way, axis=1))
                f = (way @ here)[:, None] + spread[:, None] * inner
                told = jnp.sum((y[:, None] * f - jnp.logaddexp(0, f)) @ inner_masses)
                width = tau**2 / scale**2
                own = here[d:] ** 2 + jnp.diagonal(left)[d:]
                return told, -own / (2 * width) - jnp.log(2 * jnp.pi * width) / 2

            told, own = jax.vmap(given)(tau_at)
            return weight @ told, weight @ own + jnp.stack(entropies)

        told, own = jax.vmap(line)(jnp.asarray(lines), jnp.asarray(x), jnp.asarray(y))
        total = jnp.sum(told)
        for level, count in enumerate(counts):
            once = np.array([np.flatnonzero(lines[:, level] == g)[0] for g in range(count)])
            total = total + jnp.sum(own[once, level])
        away = (mean - prior_mean) / prior_sd
        trace = jnp.sum(jnp.diagonal(covariance) / prior_sd**2)
        log_ratio = 2 * jnp.sum(jnp.log(prior_sd)) - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        return total - (trace + away @ away - d + log_ratio) / 2

    start = [0, 0] + [-0.5] * levels
    start += np.diag(np.full(d, -0.5))[np.tril_indices(d)].tolist()
    bounds = [(None, None)] * len(start)
    for level, count in enumerate(counts):
        start += [0.0] * (count * (2 + d + level)) + [0.5] * count
        bounds += [(None, None)] * (count * (2 + d + level)) + [(0, 0.95)] * count
    return value, np.array(start), bounds
