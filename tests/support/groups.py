"""Small problems with effects of groups, shared by their tests, so that their programs are compiled once."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import partita as pt
from partita.models import GroupEffects

GROUPS, EACH = 12, 8
CLIENTS = 3
FAMILY = pt.FullGaussian
SOLVER = pt.solvers.FixedPoint(tolerance=1e-14)


class Grouped(NamedTuple):
    """A model of rows in groups."""

    model: GroupEffects
    prior: pt.FullGaussian
    table: pt.data.GroupedTable
    parts: pt.data.Partition


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


def grouped(levels, table):
    """Intercepts of groups at so many levels."""
    mean, sd = np.append(np.zeros(2), np.full(levels, -0.5)), np.append(np.full(2, 2.0), np.ones(levels))
    prior = FAMILY.from_mean_covariance(jnp.asarray(mean), jnp.diag(jnp.asarray(sd**2)))
    return Grouped(GroupEffects(pt.LogisticRegression(), (1,) * levels), prior, table, cut(table))


TABLE = rows()
PLAIN = grouped(1, TABLE)
NESTED = grouped(
    2, TABLE._replace(z=np.ones((len(TABLE.y), 2)), group=np.stack([TABLE.group // 2, TABLE.group % 2], axis=1))
)
"""Two groups in each of six; the inner ones' numbers are theirs only inside the outer one."""
MODEL, PRIOR, PARTS = PLAIN.model, PLAIN.prior, PLAIN.parts
