"""Nothing but the project's own errors comes of mutated inputs, and no changed content is accepted."""

import pytest

import mutate
from support.mutable import TARGETS

QUICK = {"messages": 2000, "settings": 150, "checkpoints": 150, "ledgers": 60, "posteriors": 150}
"""What takes about ten seconds in all."""


@pytest.mark.parametrize("kind", TARGETS)
def test_some(kind):
    outcome = mutate.mutate(kind, QUICK[kind], seed=1)
    assert not outcome.wrong
    assert outcome.counts["refused"] > QUICK[kind] / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_ten_thousand(kind):
    assert not mutate.mutate(kind, 10_000).wrong
