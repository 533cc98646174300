import numpy as np
import pytest

from partita import InputError, Table, datasets
from partita.data import beta_kappa, by_column, equal_random, k_means, label_shards, split

LABELS = np.random.default_rng(0).permutation(np.repeat([0.0, 1.0], [60, 40]))


def used(indices):
    return np.sort(np.concatenate(indices))


@pytest.fixture(scope="module")
def adult_labels():
    return datasets.adult().train.y


@pytest.mark.parametrize(
    ("beta", "kappa", "small", "positive_small", "large", "positive_large"),
    [(0.0, 0.0, 3907, 0.240, 3907, 0.240), (0.7, -3.0, 1172, 0.959, 6642, 0.111)],
    ids=["split A", "split B"],
)
def test_adult_is_split_as_in_the_papers_table(adult_labels, beta, kappa, small, positive_small, large, positive_large):
    """`tab:uci_splits`: sizes and the small clients' labels to every digit, the large clients' within 0.006."""
    assert len(adult_labels) == 39_073
    clients = beta_kappa(adult_labels, 10, beta, kappa)
    assert [len(rows) for rows in clients] == [small] * 5 + [large] * 5
    shares = np.array([adult_labels[rows].mean() for rows in clients])
    np.testing.assert_allclose(shares[:5], positive_small, atol=5e-4)
    np.testing.assert_allclose(shares[5:], positive_large, atol=0.006)
    rows = used(clients)
    assert len(np.unique(rows)) == len(rows)


@pytest.mark.parametrize(("beta", "kappa"), [(0.0, 0.0), (0.5, 0.5), (0.7, -1.4), (0.3, 1.0)])
def test_beta_kappa_uses_every_positive_and_no_row_twice(beta, kappa):
    clients = beta_kappa(LABELS, 4, beta, kappa)
    assert [len(rows) for rows in clients] == [int(25 * (1 - beta))] * 2 + [int(25 * (1 + beta))] * 2
    rows = used(clients)
    assert len(np.unique(rows)) == len(rows)
    assert LABELS[rows].sum() == 40
    # η_small = η (1 − κ), rounded up to a whole row
    expected = np.ceil(np.round(0.4 * (1 - kappa) * len(clients[0]), 9))
    assert LABELS[clients[0]].sum() == LABELS[clients[1]].sum() == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0, "kappa": -2.0}, "use κ closer to 0"),  # small clients would need 120% positives
        ({"beta": 0.0, "kappa": 1.5}, "use κ closer to 0"),
        ({"clients": 5}, "even number of clients, not 5"),
        ({"clients": 0}, "even number"),
        ({"beta": 1.0}, "β must be in"),
        ({"beta": -0.1}, "β must be in"),
        ({"clients": 200}, "closer to 0"),
    ],
)
def test_beta_kappa_out_of_range_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        beta_kappa(LABELS, **{"clients": 4, **settings})


def test_beta_kappa_needs_two_classes():
    with pytest.raises(InputError, match="labels 0 and 1"):
        beta_kappa(LABELS + 1)


@pytest.mark.parametrize("clients", [1, 3, 7, 100])
def test_equal_random_parts_differ_by_at_most_one_row(clients):
    parts = equal_random(100, clients, seed=4)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(used(parts), np.arange(100))
    assert all((a == b).all() for a, b in zip(parts, equal_random(100, clients, seed=4), strict=True))


def test_equal_random_depends_on_the_seed():
    assert (equal_random(100, 2, seed=0)[0] != equal_random(100, 2, seed=1)[0]).any()


def test_label_shards_give_few_labels_each():
    """Ten clients of two shards, each shard half a class: nobody has more than two labels."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 20))
    parts = label_shards(y, 10, shards=2, seed=1)
    assert all(len(part) == 20 and len(np.unique(y[part])) <= 2 for part in parts)
    np.testing.assert_array_equal(used(parts), np.arange(200))


def test_label_shards_are_cut_within_a_label():
    """Labels of unequal sizes: no shard has two, and no shard could be smaller without another becoming the largest."""
    counts = np.array([59, 67, 60, 7, 1])
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(5), counts))
    parts = label_shards(y, 10, shards=2, seed=1)
    assert all(len(np.unique(y[part])) <= 2 for part in parts)
    np.testing.assert_array_equal(used(parts), np.arange(len(y)))
    single = [len(part) for part in label_shards(y, 20, shards=1)]
    assert (len(single), max(single)) == (20, 12)
    assert sum(-(-counts // 11)) > 20  # pieces of at most 11 rows would be more than 20


def test_k_means_finds_clusters():
    generator = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]], [10, 20, 30], axis=0)
    parts = k_means(centres + generator.normal(size=centres.shape), 3, seed=0)
    assert sorted(len(part) for part in parts) == [10, 20, 30]
    assert all(len(np.unique(centres[part], axis=0)) == 1 for part in parts)
    np.testing.assert_array_equal(used(parts), np.arange(60))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array(["Leeds", "York", "Leeds", "Hull"]), ["Leeds", "York", "Hull"]),
        (np.array([7, 3, 7, 5]), ["7", "3", "5"]),
    ],
)
def test_by_column_has_a_client_per_value(values, names):
    parts, found = by_column(values)
    assert found == names
    assert [part.tolist() for part in parts] == [[0, 2], [1], [3]]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: equal_random(3, 4),
        lambda: equal_random(3, 0),
        lambda: label_shards(LABELS, 60),
        lambda: k_means(np.ones((2, 2)), 3),
    ],
)
def test_more_clients_than_rows_are_refused(ask):
    with pytest.raises(InputError, match="cannot be divided"):
        ask()


def test_more_labels_than_shards_are_refused():
    with pytest.raises(InputError, match="There are 9 labels for 4 shards of one label each"):
        label_shards(np.arange(9), 2)


def test_split_gives_each_client_its_rows_and_name():
    data = Table(np.arange(8.0).reshape(4, 2), np.array([0.0, 1.0, 0.0, 1.0]))
    parts = split(data, [np.array([3, 0]), np.array([1])], names=["a", "b"], drop=True)
    assert (parts.names, parts.sizes) == (("a", "b"), (2, 1))
    np.testing.assert_array_equal(parts.shards[0].data.x, data.x[[3, 0]])
    np.testing.assert_array_equal(parts.shards[1].data.y, data.y[[1]])
