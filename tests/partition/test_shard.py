import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import InputError, LogisticRegression, MeanFieldGaussian, Table
from partita.data import federate

KEY = jax.random.key(0)
SIZES = (5, 3, 8, 4)


def table(rows, seed=0):
    generator = np.random.default_rng([rows, seed])
    return Table(generator.normal(size=(rows, 2)), generator.integers(0, 2, rows).astype(float))


CLIENTS = [table(rows) for rows in SIZES]


def test_padding_repeats_a_real_row_with_weight_zero():
    parts = federate(CLIENTS, buckets=1)
    for shard, client, rows in zip(parts.shards, CLIENTS, SIZES, strict=True):
        assert shard.data.x.shape == (8, 2)
        assert int(shard.rows) == rows
        np.testing.assert_array_equal(shard.data.x[:rows], client.x)
        np.testing.assert_array_equal(shard.data.y[:rows], client.y)
        np.testing.assert_array_equal(shard.weights, np.arange(8) < rows)
        assert (shard.data.x[rows:] == client.x[-1]).all()
    assert parts.sizes == SIZES
    assert parts.rows == 20
    assert len(parts) == 4


def test_padding_changes_no_likelihood():
    q, model = MeanFieldGaussian.standard_normal(2), LogisticRegression()
    weights = [np.linspace(0.5, 2.0, rows) for rows in SIZES]
    padded = federate(CLIENTS, weights=weights, buckets=1)
    bare = federate(CLIENTS, weights=weights, buckets=None)
    ell = jax.jit(lambda shard: model.ell(q, shard.data, shard.weights, KEY))
    for a, b in zip(padded.shards, bare.shards, strict=True):
        np.testing.assert_allclose(ell(a), ell(b), rtol=1e-13)


def padding(sizes, lengths):
    return sum(min(length for length in lengths if length >= size) - size for size in sizes)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("buckets", [1, 2, 3, 4])
def test_the_chosen_lengths_minimise_padding(buckets, seed):
    sizes = np.random.default_rng(seed).integers(1, 30, 9)
    parts = federate([table(rows) for rows in sizes], buckets=buckets)
    lengths = {len(shard.weights) for shard in parts.shards}
    assert len(lengths) <= buckets
    choices = itertools.combinations(np.unique(sizes), min(buckets, len(np.unique(sizes))))
    fewest = min(padding(sizes, choice) for choice in choices if max(choice) == max(sizes))
    assert padding(sizes, lengths) == fewest


def test_without_buckets_nothing_is_padded():
    parts = federate(CLIENTS, buckets=None)
    assert tuple(len(shard.weights) for shard in parts.shards) == SIZES


def test_pooled_is_the_union_of_real_rows():
    weights = [np.linspace(0.5, 2.0, rows) for rows in SIZES]
    pooled = federate(CLIENTS, weights=weights, buckets=1).pooled()
    assert len(pooled) == 1
    assert pooled.rows == 20
    np.testing.assert_array_equal(pooled.shards[0].data.x, np.concatenate([client.x for client in CLIENTS]))
    np.testing.assert_array_equal(pooled.shards[0].weights, np.concatenate(weights))


def test_selecting_one_client_keeps_it_unchanged():
    parts = federate(CLIENTS, names=["a", "b", "c", "d"], buckets=1)
    one = parts.only(parts.names[1])
    assert (one.names, one.sizes, one.rows) == (("b",), (3,), 3)
    jax.tree.map(np.testing.assert_array_equal, one.shards[0], parts.shards[1])


def test_weights_have_the_type_of_the_data():
    for dtype in (np.float32, np.float64):
        data = [jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), client) for client in CLIENTS]
        assert {shard.weights.dtype for shard in federate(data).shards} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        ([], {}, "no clients"),
        ([table(3), table(0)], {}, "client 1 is empty"),
        ([table(3), table(0)], {"names": ["north", "south"]}, "south is empty"),
        ([table(3), Table(np.ones((3, 4)), np.ones(3))], {}, r"client 1 has columns of shape .*\(4,\).* client 0"),
        ([Table(np.ones((3, 2)), np.ones(2))], {}, "client 0.*different numbers of rows"),
        (CLIENTS, {"names": ["a", "b", "b", "c"]}, "unique names"),
        (CLIENTS, {"names": ["a", "b"]}, "unique names"),
        (CLIENTS[:2], {"weights": [np.ones(5), np.ones(2)]}, "client 1: give 3"),
        (CLIENTS[:2], {"weights": [np.ones(5), [1.0, -1.0, 1.0]]}, "client 1: give 3 finite, non-negative weights"),
        (CLIENTS[:2], {"weights": [np.full(5, np.nan), np.ones(3)]}, "client 0: give 5"),
        (CLIENTS[:2], {"weights": [np.ones(5)]}, "Give 2 vectors of weights, one per client, not 1"),
        (CLIENTS, {"buckets": 0}, "number of buckets"),
    ],
)
def test_data_that_cannot_be_used_is_named(clients, settings, message):
    with pytest.raises(InputError, match=message):
        federate(clients, **settings)
