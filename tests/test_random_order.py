"""Random orders: each number once, and every number equally often at every place."""

import jax
import numpy as np
import pytest

from partita.numerics.order import random_order


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_every_number_occurs_once(length):
    assert sorted(np.asarray(random_order(jax.random.key(3), length))) == [*range(length)]


def test_all_numbers_are_equally_often_at_each_place_and_beside_each_other():
    """By chi-square: 99 degrees of freedom with 10 numbers, of which 160 are exceeded once in 10,000 seeds."""
    count, length = 4000, 10
    orders = np.asarray(jax.vmap(lambda key: random_order(key, length))(jax.random.split(jax.random.key(0), count)))
    places = np.stack([np.bincount(column, minlength=length) for column in orders.T])
    assert ((places - count / length) ** 2).sum() / (count / length) < 160
    pairs = np.bincount((orders[:, :-1] * length + orders[:, 1:]).ravel(), minlength=length**2).reshape(length, length)
    expected = count * (length - 1) / (length * (length - 1))
    assert np.diagonal(pairs).max() == 0
    assert ((pairs - expected) ** 2)[~np.eye(length, dtype=bool)].sum() / expected < 160
