"""Two members that are to be combined."""

from typing import Any

import jax

from partita.errors import SettingsError

__all__ = ["same"]


def same(first: Any, second: Any) -> tuple[Any, Any]:
    """Two members, plain; they must be of one family and shape."""
    if type(first) is not type(second):
        raise SettingsError(
            f"A {type(first).__name__} cannot be combined with a {type(second).__name__}: "
            "use one family for prior and factors."
        )
    first, second = first.plain(), second.plain()
    mine, theirs = ([leaf.shape for leaf in jax.tree.leaves(member)] for member in (first, second))
    trees: list[Any] = [jax.tree.structure(member) for member in (first, second)]
    if mine != theirs or trees[0] != trees[1]:
        kind = type(first).__name__
        raise SettingsError(f"Two {kind} members of different shape cannot be combined: {mine} and {theirs}.")
    return first, second
