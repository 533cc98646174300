"""Compilation in which every number is traced, so that only shapes and kinds of things make a new program."""

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """A function of pytrees, compiled once per shape.

    Arrays and Python numbers among the leaves are traced, unlike in `equinox.filter_jit`, where a new step size would
    be a new program; other leaves, and fields marked static, are part of the program. `traces` counts compilations.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.traces = 0
        self._function = function
        self._compiled = jax.jit(self._trace, static_argnums=1)

    def _trace(self, traced: tuple[Any, ...], static: tuple[Any, ...]) -> R:
        self.traces += 1
        leaves, treedef = static
        arguments = eqx.combine(traced, jax.tree.unflatten(treedef, leaves))
        function: Callable[..., R] = self._function
        return function(*arguments)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs, "compiled functions take positional arguments"
        traced, static = eqx.partition(args, eqx.is_array_like)
        leaves, treedef = jax.tree.flatten(static)
        return self._compiled(traced, (tuple(leaves), treedef))
