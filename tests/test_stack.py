"""Entries of many clients as stacked arrays: a value, whose copies share what they have in common."""

import equinox as eqx
import jax
import numpy as np
import pytest

from partita.families.factor import Factor
from partita.io.wire import equal, flatten, unflatten
from partita.numerics.stack import Stack
from support.problems import FULL, PRIOR


def entry(number):
    """A factor with this number everywhere."""
    return jax.tree.map(lambda leaf: np.full(leaf.shape, float(number)), Factor.one(FULL))


def stack_of(number):
    return Stack.of([entry(k) for k in range(number)])


@pytest.mark.parametrize("number", [1, 2, 100, 1000])
def test_it_is_a_sequence_of_its_entries(number):
    stack = stack_of(number)
    assert len(stack) == number == len(list(stack))
    for k in {0, number // 2, number - 1}:
        assert equal(stack[k], entry(k))
        assert equal(stack[k - number], entry(k))
    with pytest.raises(IndexError):
        stack[number]
    assert [float(each.log_scale) for each in stack[:3]] == [0.0, 1.0, 2.0][:number]


def test_another_entry_makes_another_stack_that_shares_all_other_chunks():
    before = stack_of(1000)
    kept = [np.array(leaf) for leaf in jax.tree.leaves(before)]
    after = before.replaced({500: entry(-1), 501: entry(-2)})
    assert equal(after[500], entry(-1))
    assert equal(after[501], entry(-2))
    assert after.differing(before) == [500, 501]
    assert len(after.changed_since(before)) == 1 < len(before.chunks)
    # the older one is what it was, and cannot be changed by an entry of it
    for now, then in zip(jax.tree.leaves(before), kept, strict=True):
        np.testing.assert_array_equal(now, then)
    before[3].log_scale[...] = 7.0
    assert float(before[3].log_scale) == 3.0
    with pytest.raises(ValueError, match="read-only"):
        before.chunks[0].arrays[0][:] = 0.0


def test_sums_are_those_of_all_entries_after_any_changes():
    generator, stack = np.random.default_rng(0), Stack.repeated(entry(1), 700)
    for _ in range(300):
        places = generator.choice(len(stack), generator.integers(1, 5), replace=False).tolist()
        stack = stack.replaced({k: entry(generator.normal()) for k in places})
        stack.summed()
    whole = jax.tree.map(lambda leaf: leaf.sum(0), stack.stacked())
    for found, expected in zip(jax.tree.leaves(stack.summed()), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("number", [1, 40, 66, 700])
def test_entries_are_appended_and_taken(number):
    stack = Stack.repeated(entry(1), number)
    for k in range(3):
        stack = stack.appended(entry(2 + k))
    assert [float(each.log_scale) for each in stack] == [1.0] * number + [2.0, 3.0, 4.0]
    np.testing.assert_array_equal(stack.taken([number + 2, 0]).log_scale, [4.0, 1.0])
    assert [float(each.log_scale) for each in stack.resized(number + 1, entry(9))] == [1.0] * number + [2.0]
    assert [float(each.log_scale) for each in stack.resized(number + 4, entry(9))][-2:] == [4.0, 9.0]


def test_one_object_for_everybody_is_there_once():
    few, many = (Stack.repeated(Factor.one(PRIOR), number) for number in (10, 100_000))
    assert few.nbytes == many.nbytes
    assert many[0] is many[99_999]


def test_as_a_pytree_it_is_the_stacked_arrays():
    stack = stack_of(100)
    again = jax.tree.map(lambda leaf: 2 * leaf, stack)
    assert equal(again[7], entry(14))
    assert eqx.tree_equal(unflatten(flatten(stack), again, "here"), stack)
