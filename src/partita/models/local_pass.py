"""Any network's pass over one row, with draws of what reaches its units instead of draws of its weights.

A weight matrix that meets a row's activations, or a parameter that is added to them or scales them, makes independent
Gaussians of independent Gaussian parameters; only these are drawn, which is local reparameterisation. The network is any function
that JAX traces: its operations are gone through one by one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, Float, PyTree, Shaped

from partita.families.base import Theta

__all__ = ["NotLocal", "count_units", "local_pass"]

_STRUCTURE = ("broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "transpose")
"""Operations that move numbers, and change none."""
_INLINE = ("closed_call", "jit", "pjit", "remat", "checkpoint")
"""Operations that hold others."""


class NotLocal(Exception):
    """A parameter does something that makes no independent Gaussians."""


class _Moments(NamedTuple):
    """Independent Gaussians that have not been drawn yet."""

    mean: Array
    variance: Array
    parameter: bool
    """Whether they are parameters themselves, which are the same for all rows."""


_Value = Any
"""An array, or `_Moments`."""


class _Noise:
    """Standard normal noise that is used up from the front; without any, it only counts."""

    def __init__(self, noise: Float[Array, " u"] | None) -> None:
        self.noise, self.used = noise, 0

    def drawn(self, value: _Moments) -> Array:
        start, size = self.used, value.mean.size
        self.used += size
        if self.noise is None:
            return value.mean
        noise = jax.lax.dynamic_slice_in_dim(self.noise, start, size).reshape(value.mean.shape)
        positive = value.variance > 0
        return value.mean + jnp.where(positive, jnp.sqrt(jnp.where(positive, value.variance, 1)), 0) * noise


def local_pass(
    apply: Callable[[Theta, Array], PyTree], mean: Theta, variance: Theta, x: Shaped[Array, " ..."], noise: Array | None
) -> tuple[PyTree, int]:
    """The outputs of one row at a draw of what reaches the units, and how many numbers were drawn.

    Args:
        apply: of parameters and rows.
        mean: of the parameters.
        variance: of the parameters, which are independent Gaussians.
        x: the row.
        noise: as many standard normal numbers as are drawn; without them the means are taken.

    """
    used = _Noise(noise)
    closed, shape = jax.make_jaxpr(apply, return_shape=True)(mean, x[None])
    leaves = zip(jax.tree.leaves(mean), jax.tree.leaves(variance), strict=True)
    given = [*(_Moments(m, v, True) for m, v in leaves), x[None]]
    found = [_settled(value, used) for value in _gone_through(closed, given, used)]
    return jax.tree.map(lambda leaf: leaf[0], jax.tree.unflatten(jax.tree.structure(shape), found)), used.used


def count_units(apply: Callable[[Theta, Array], PyTree], parameters: Theta, x: jax.ShapeDtypeStruct) -> int:
    """How many numbers a pass over one row draws; raises `NotLocal` where it is none."""
    counted = list[int]()

    def count(parameters: Theta, x: Array) -> None:
        counted.append(local_pass(apply, parameters, parameters, x, None)[1])

    jax.eval_shape(count, parameters, x)
    return counted[0]


def _gone_through(closed: ClosedJaxpr, given: Sequence[_Value], noise: _Noise) -> list[_Value]:
    """The values of a traced function, operation by operation."""
    jaxpr = closed.jaxpr
    uses, known = _uses(jaxpr), dict[Any, _Value]()

    def keep(variable: Any, value: _Value) -> None:
        # what is used twice must be the same both times
        if isinstance(value, _Moments) and uses.get(variable, 0) > 1:
            value = _settled(value, noise)
        known[variable] = value

    for variable, value in (*zip(jaxpr.constvars, closed.consts, strict=True), *zip(jaxpr.invars, given, strict=True)):
        keep(variable, value)
    for operation in jaxpr.eqns:
        values = [each.val if isinstance(each, Literal) else known[each] for each in operation.invars]
        for variable, value in zip(operation.outvars, _done(operation, values, noise), strict=True):
            keep(variable, value)
    return [each.val if isinstance(each, Literal) else known[each] for each in jaxpr.outvars]


def _uses(jaxpr: Jaxpr) -> dict[Any, int]:
    """How often each variable is used."""
    found = dict[Any, int]()
    for variable in (*(each for operation in jaxpr.eqns for each in operation.invars), *jaxpr.outvars):
        if not isinstance(variable, Literal):
            found[variable] = found.get(variable, 0) + 1
    return found


def _done(operation: JaxprEqn, values: list[_Value], noise: _Noise) -> list[_Value]:
    """What an operation makes of values."""
    name, random = operation.primitive.name, [isinstance(value, _Moments) for value in values]
    if any(random):
        if name in _INLINE and isinstance(inner := operation.params.get("jaxpr"), ClosedJaxpr):
            return _gone_through(inner, values, noise)
        found = _of_moments(name, operation, values)
        if found is not None:
            return [found]
        values = [_settled(value, noise) for value in values]
    return _bound(operation, values)


def _of_moments(name: str, operation: JaxprEqn, values: list[_Value]) -> _Moments | None:
    """What an operation makes of independent Gaussians, if they stay that."""
    if len(values) == 1 and isinstance(value := values[0], _Moments):
        made: Any = operation.outvars[0].aval
        same = math.prod(made.shape) == value.mean.size
        if name in _STRUCTURE and same:
            mean, variance = (_bound(operation, [each])[0] for each in (value.mean, value.variance))
            return _Moments(mean, variance, value.parameter)
        return _Moments(-value.mean, value.variance, False) if name == "neg" else None
    if len(values) != 2:
        return None
    first, second = values
    one, moving = isinstance(first, _Moments) != isinstance(second, _Moments), 0 if isinstance(first, _Moments) else 1
    parts = [
        value if isinstance(value, _Moments) else _Moments(value, jnp.zeros_like(value), False) for value in values
    ]
    means = [part.mean for part in parts]
    alike = jnp.shape(means[0]) == jnp.shape(means[1]) or (one and jnp.shape(means[1 - moving]) == ())
    if name in ("add", "sub") and alike:
        spread = parts[0].variance + parts[1].variance
        return _Moments(_bound(operation, means)[0], spread, all(part.parameter for part in parts))
    if one and alike and (name == "mul" or (name == "div" and not moving)):
        return _product(operation, parts, moving)
    if name == "dot_general" and one:
        contracted, batched = operation.params["dimension_numbers"]
        still = means[1 - moving]
        reached = math.prod(still.shape[axis] for axis in contracted[1 - moving])
        if not batched[0] and reached == still.size:
            return _product(operation, parts, moving)
    return None


def _product(operation: JaxprEqn, parts: Sequence[_Moments], moving: int) -> _Moments:
    """What an operation that is linear in either value makes of Gaussians and known numbers."""
    means = [part.mean for part in parts]
    factors = [parts[place].variance if place == moving else jnp.square(means[place]) for place in (0, 1)]
    return _Moments(_bound(operation, means)[0], _bound(operation, factors)[0], False)


def _settled(value: _Value, noise: _Noise) -> Array:
    """The value, drawn if it has not been."""
    if not isinstance(value, _Moments):
        return value
    if value.parameter:
        raise NotLocal
    return noise.drawn(value)


def _bound(operation: JaxprEqn, values: Sequence[Array]) -> list[Array]:
    given = operation.primitive.get_bind_params(operation.params)
    # before JAX 0.10 functions are apart
    functions, parameters = given if isinstance(given, tuple) else ((), given)
    found = operation.primitive.bind(*functions, *values, **parameters)
    return list(found) if operation.primitive.multiple_results else [found]
