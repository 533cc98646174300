"""`tab:uci_splits` in full; Bank and Credit are not bundled, so it needs them downloaded or in PARTITA_DATA."""

import numpy as np
import pytest

import partita_experiments as experiments
from partita import InputError
from partita_experiments.problem import divide
from partita_experiments.source import load
from partita_experiments.statements import TABLE

ROWS = {"adult": (39073, 0.240), "bank": (36168, 0.117), "credit": (522, 0.550)}
"""Training rows, and η of split A as printed."""
PROBLEMS = {problem.name: problem for problem in experiments.load("uci").problems}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_clients_are_those_of_the_papers_table(name):
    """Sizes and the small clients' labels to every digit printed; η (split A) and η_large within 0.006."""
    try:
        source = load(PROBLEMS[name].data)
    except InputError as error:
        pytest.skip(str(error))
    train = divide(PROBLEMS[name], source, None).clients
    small, positive_small, large, positive_large = TABLE[name]
    assert [len(rows) for rows in train] == [small] * 5 + [large] * 5
    shares = [source.y[np.concatenate(half)].mean() for half in (train[:5], train[5:])]
    np.testing.assert_allclose(shares[0], positive_small, atol=0.006 if name.endswith("A") else 0.0005)
    np.testing.assert_allclose(shares[1], positive_large, atol=0.006)


@pytest.mark.parametrize(("name", "follows"), [("adult B", False), ("bank B", False), ("credit B", True)])
def test_whether_the_printed_share_of_large_clients_follows_from_the_others(name, follows):
    """All positives are at clients but for those of a few rows left over: so η_large has bounds, to three decimals."""
    small, positive_small, large, positive_large = TABLE[name]
    rows, share = ROWS[name.split()[0]]
    left, half = rows - 5 * small - 5 * large, 0.0005
    least = ((share - half) * rows - left - (positive_small + half) * 5 * small) / (5 * large)
    most = ((share + half) * rows - (positive_small - half) * 5 * small) / (5 * large)
    assert (least - half <= positive_large <= most + half) is follows
