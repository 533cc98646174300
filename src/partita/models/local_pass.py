"""Any network's pass over one row, with draws of what reaches its units instead of draws of its weights.

A weight matrix that meets a row's activations, or a parameter that is added to them or scales them, makes independent
Gaussians of independent Gaussian parameters; only these are drawn, which is local reparameterisation. The network is
any function that JAX traces: its operations are gone through one by one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, Float, PyTree, Shaped

from partita.families.base import Theta

__all__ = ["FirstMoments", "NotLocal", "count_units", "local_pass"]

FirstMoments = tuple[tuple[Array, Array], ...]
"""Mean and sd of what is drawn first, before anything depends on noise."""
_STRUCTURE = ("broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "transpose")
"""Operations that move numbers, and change none."""
_INLINE = ("closed_call", "jit", "pjit", "remat", "checkpoint")
"""Operations that hold others."""


class NotLocal(Exception):
    """A parameter does something that makes no independent Gaussians."""


class _Pass(NamedTuple):
    """What a network makes of a row."""

    outputs: PyTree
    drawn: int
    """How many numbers were drawn."""
    first: FirstMoments


class _Number(NamedTuple):
    """An array."""

    array: Array
    late: bool
    """Whether it depends on noise."""


class _Moments(NamedTuple):
    """Independent Gaussians that have not been drawn yet."""

    mean: Array
    variance: Array
    late: bool
    parameter: bool = False
    """Whether they are parameters themselves, which are the same for all rows."""


_Value = _Number | _Moments


class _Noise:
    """Standard normal noise that is used up from the front; without any, means are drawn.

    What does not depend on noise is the same for all draws: it is noted, or taken from what was noted before.
    """

    def __init__(self, noise: Float[Array, " u"] | None, first: FirstMoments | None) -> None:
        self.noise, self.used = noise, 0
        self.noted: list[tuple[Array, Array]] = []
        self._first: Iterator[tuple[Array, Array]] | None = None if first is None else iter(first)

    def drawn(self, value: _Moments) -> _Number:
        start, size = self.used, value.mean.size
        self.used += size
        if self._first is None or value.late:
            positive = value.variance > 0
            mean, sd = value.mean, jnp.where(positive, jnp.sqrt(jnp.where(positive, value.variance, 1)), 0)
        else:
            mean, sd = next(self._first)
        if not value.late:
            self.noted.append((mean, sd))
        if self.noise is None:
            return _Number(mean, True)
        return _Number(mean + sd * self.noise[start : start + size].reshape(mean.shape), True)


def local_pass(
    apply: Callable[[Theta, Array], PyTree],
    mean: Theta,
    variance: Theta,
    x: Shaped[Array, " ..."],
    noise: Float[Array, " u"] | None = None,
    first: FirstMoments | None = None,
) -> _Pass:
    """The outputs of one row at a draw of what reaches the units.

    Args:
        apply: of parameters and rows.
        mean: of the parameters.
        variance: of the parameters, which are independent Gaussians.
        x: the row.
        noise: as many standard normal numbers as are drawn; without them the means are taken.
        first: what another pass over the same row has noted.

    """
    used = _Noise(noise, first)
    closed, shape = jax.make_jaxpr(apply, return_shape=True)(mean, x[None])
    leaves = zip(jax.tree.leaves(mean), jax.tree.leaves(variance), strict=True)
    given = [*(_Moments(m, v, False, True) for m, v in leaves), _Number(x[None], False)]
    found = [_settled(value, used).array[0] for value in _gone_through(closed, given, used)]
    return _Pass(jax.tree.unflatten(jax.tree.structure(shape), found), used.used, tuple(used.noted))


def count_units(apply: Callable[[Theta, Array], PyTree], parameters: Theta, x: jax.ShapeDtypeStruct) -> int:
    """How many numbers a pass over one row draws; raises `NotLocal` where it is none."""
    counted = list[int]()

    def count(parameters: Theta, x: Array) -> None:
        counted.append(local_pass(apply, parameters, parameters, x).drawn)

    jax.eval_shape(count, parameters, x)
    return counted[0]


def _gone_through(closed: ClosedJaxpr, given: Sequence[_Value], noise: _Noise) -> list[_Value]:
    """The values of a traced function, operation by operation."""
    jaxpr = closed.jaxpr
    uses, known = _uses(jaxpr), dict[Any, _Value]()

    def keep(variable: Any, value: _Value) -> None:
        # what is used twice must be the same both times
        known[variable] = _settled(value, noise) if uses.get(variable, 0) > 1 else value

    def read(each: Any) -> _Value:
        return _Number(each.val, False) if isinstance(each, Literal) else known[each]

    constants = [_Number(each, False) for each in closed.consts]
    for variable, value in zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True):
        keep(variable, value)
    for operation in jaxpr.eqns:
        made = _done(operation, [read(each) for each in operation.invars], noise)
        for variable, value in zip(operation.outvars, made, strict=True):
            keep(variable, value)
    return [read(each) for each in jaxpr.outvars]


def _uses(jaxpr: Jaxpr) -> dict[Any, int]:
    """How often each variable is used."""
    found = dict[Any, int]()
    for variable in (*(each for operation in jaxpr.eqns for each in operation.invars), *jaxpr.outvars):
        if not isinstance(variable, Literal):
            found[variable] = found.get(variable, 0) + 1
    return found


def _done(operation: JaxprEqn, values: Sequence[_Value], noise: _Noise) -> Sequence[_Value]:
    """What an operation makes of values."""
    if any(isinstance(value, _Moments) for value in values):
        inner = operation.params.get("jaxpr")
        if operation.primitive.name in _INLINE and isinstance(inner, ClosedJaxpr):
            return _gone_through(inner, values, noise)
        found = _of_one(operation, *values) if len(values) == 1 else _of_two(operation, values)
        if found is None and len(values) == 2:
            # what a row brings is drawn, and may then meet a parameter
            values = [value if _is_parameter(value) else _settled(value, noise) for value in values]
            found = _of_two(operation, values)
        if found is not None:
            return [found]
    numbers = [_settled(value, noise) for value in values]
    late = any(number.late for number in numbers)
    return [_Number(array, late) for array in _bound(operation, [number.array for number in numbers])]


def _of_one(operation: JaxprEqn, value: _Value) -> _Moments | None:
    """What an operation makes of independent Gaussians, if they stay that."""
    assert isinstance(value, _Moments)
    made: Any = operation.outvars[0].aval
    if operation.primitive.name in _STRUCTURE and math.prod(made.shape) == value.mean.size:
        mean, variance = (_bound(operation, [each])[0] for each in (value.mean, value.variance))
        return value._replace(mean=mean, variance=variance)
    if operation.primitive.name == "neg":
        return value._replace(mean=-value.mean)
    return None


def _of_two(operation: JaxprEqn, values: Sequence[_Value]) -> _Moments | None:
    """What an operation makes of independent Gaussians and known numbers, or of two lots of Gaussians."""
    if len(values) != 2:
        return None
    moving = [place for place, value in enumerate(values) if isinstance(value, _Moments)]
    if not moving:
        return None
    name, late = operation.primitive.name, any(value.late for value in values)
    parts = [
        value if isinstance(value, _Moments) else _Moments(value.array, jnp.zeros_like(value.array), False)
        for value in values
    ]
    first, second = (np.shape(part.mean) for part in parts)
    made: Any = operation.outvars[0].aval
    # nothing random may be spread over several places
    alike = all(np.shape(parts[place].mean) == made.shape for place in moving)
    means = [part.mean for part in parts]
    if name in ("add", "sub") and alike:
        variance = jnp.broadcast_to(parts[0].variance + parts[1].variance, made.shape)
        return _Moments(_bound(operation, means)[0], variance, late, all(part.parameter for part in parts))
    if len(moving) == 2:
        return None
    if name == "dot_general":
        contracted, batched = operation.params["dimension_numbers"]
        still = (second, first)[moving[0]]
        # all of what is known is summed over, so that every sum has random numbers of its own
        alike = not batched[0] and math.prod(still[axis] for axis in contracted[1 - moving[0]]) == math.prod(still)
    if alike and (name in ("mul", "dot_general") or (name == "div" and moving == [0])):
        squares = [part.variance if place in moving else jnp.square(part.mean) for place, part in enumerate(parts)]
        return _Moments(_bound(operation, means)[0], _bound(operation, squares)[0], late)
    return None


def _is_parameter(value: _Value) -> bool:
    return isinstance(value, _Moments) and value.parameter


def _settled(value: _Value, noise: _Noise) -> _Number:
    """The value, drawn if it has not been."""
    if isinstance(value, _Number):
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
