"""JIT compilation that traces every number, so that only new shapes and static fields trigger compilation."""

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Int, Real

__all__ = ["Compiled", "Scalar", "Whole"]

Scalar: TypeAlias = float | Real[Array, ""]
"""A number, which is an array where it is traced."""

Whole: TypeAlias = int | Int[Array, ""]
"""The same of a whole number."""

_TRACED = object()
"""Placeholder for a traced leaf."""

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """A function of pytrees, compiled once per shape.

    Arrays and Python numbers are traced; with `equinox.filter_jit` a new step size would recompile. Other leaves and
    static fields are compile-time constants. `traces` counts compilations.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.traces = 0
        self._function = function
        self._compiled = jax.jit(self._trace, static_argnums=1)

    def _trace(self, traced: list[Any], static: tuple[Any, ...]) -> R:
        self.traces += 1
        fixed, treedef = static
        numbers = iter(traced)
        leaves = [next(numbers) if leaf is _TRACED else leaf for leaf in fixed]
        function: Callable[..., R] = self._function
        return function(*jax.tree.unflatten(treedef, leaves))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs, "compiled functions take positional arguments"
        return self._compiled(*_divided(args))

    def compile(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Compiles for arguments of these shapes, and computes nothing: a call with such arguments is quick then."""
        assert not kwargs, "compiled functions take positional arguments"
        self._compiled.lower(*_divided(args)).compile()


def _divided(args: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    """The leaves of arguments that are traced, and all that is a constant."""
    leaves, treedef = jax.tree.flatten(args)
    fixed = tuple(_TRACED if eqx.is_array_like(leaf) else leaf for leaf in leaves)
    return [leaf for leaf, held in zip(leaves, fixed, strict=True) if held is _TRACED], (fixed, treedef)
