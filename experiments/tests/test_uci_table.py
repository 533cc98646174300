"""`tab:uci_splits` in full; Bank and Credit are not bundled, so it needs them downloaded or under PARTITA_DATA."""

import numpy as np
import pytest

import partita_experiments as experiments
from partita import InputError
from partita_experiments.problem import divide
from partita_experiments.source import load
from partita_experiments.statements import TABLE

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
