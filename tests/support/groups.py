"""A small problem with effects of groups, shared by its tests, so that its programs are compiled once."""

import jax.numpy as jnp
import numpy as np

import partita as pt
from partita.models import GroupEffects

GROUPS, EACH = 12, 8
CLIENTS = 3
FAMILY = pt.FullGaussian
PRIOR = FAMILY.from_mean_covariance(jnp.array([0.0, 0.0, -0.5]), jnp.diag(jnp.array([4.0, 4.0, 1.0])))
MODEL = GroupEffects(pt.LogisticRegression())
SOLVER = pt.solvers.FixedPoint(tolerance=1e-14)


def rows(seed=0, tau=0.7):
    """Rows in groups of a logistic regression with intercepts of groups."""
    generator = np.random.default_rng(seed)
    count, group = GROUPS * EACH, np.repeat(np.arange(GROUPS), EACH)
    x = np.stack([np.ones(count), generator.normal(size=count)], axis=1)
    f = x @ [-0.3, 0.5] + tau * generator.normal(size=GROUPS)[group]
    y = generator.binomial(1, 1 / (1 + np.exp(-f)))
    return pt.data.GroupedTable(x, y, np.ones((count, 1)), group, np.zeros(count))


def cut(table, clients=CLIENTS):
    """Equally many consecutive groups for every client."""
    return pt.federate(
        [pt.data.GroupedTable(*parts) for parts in zip(*(np.split(leaf, clients) for leaf in table), strict=True)]
    )


TABLE = rows()
PARTS = cut(TABLE)
