"""What users give: numbers, choices and objects. What is of another kind is refused in a sentence with its name."""

import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

import jax
import numpy as np

from partita.errors import InputError, SettingsError, unknown

__all__ = [
    "check_choice",
    "check_finite_number",
    "check_flag",
    "check_fraction",
    "check_function",
    "check_kind",
    "check_number",
    "check_optimiser",
    "check_path",
    "check_seed",
    "check_texts",
    "check_tolerance",
    "check_whole",
    "described",
    "real_array",
]


def described(value: Any) -> str:
    """What a value is, in a few words and on one line."""
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, bool | int | float | complex | np.generic):
        return f"{value!r:.60}"
    return f"the text {value!r:.60}" if isinstance(value, str) else f"of type {type(value).__name__}"


def check_number(
    what: str, value: Any, allowed: Callable[[float], bool] = lambda number: True, needs: str = "a number"
) -> None:
    """Raises a `SettingsError` unless a value is a real number, not NaN, that is allowed; `needs` says which are.

    One that is traced was checked before.
    """
    if isinstance(value, jax.core.Tracer):
        return
    number = _number(value)
    if number is None or math.isnan(number) or not allowed(number):
        raise SettingsError(f"The {what} must be {needs}, not {described(value)}.")


def check_finite_number(what: str, value: Any, above: float = -math.inf) -> None:
    """Raises a `SettingsError` unless a value is a finite number above another."""
    needs = "a finite number" if above == -math.inf else f"finite and above {above:g}"
    check_number(what, value, lambda number: above < number < math.inf, needs)


def check_fraction(what: str, value: Any) -> None:
    """Raises a `SettingsError` unless a number is above 0 and at most 1."""
    check_number(what, value, lambda number: 0 < number <= 1, "above 0 and at most 1")


def check_tolerance(value: Any) -> None:
    """Raises a `SettingsError` unless a tolerance is a number of nats, or None for none that is ever met."""
    if value is not None:
        check_number("tolerance", value, lambda number: number >= 0, "a number of nats, 0 or more, or None")


def check_whole(what: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> None:
    """Raises a `SettingsError` unless a value is a whole number that is neither too small nor too large."""
    if isinstance(value, jax.core.Tracer):
        return
    number = _number(value)
    whole = isinstance(value, Integral) or (number is not None and np.issubdtype(np.asarray(value).dtype, np.integer))
    if not whole or number is None or number < least or number > most:
        size = f"{least} or more" if number is None or number < most else f"{most} at most"
        raise SettingsError(f"The {what} must be a whole number, {size}, not {described(value)}.")


def check_seed(value: Any) -> None:
    """Raises a `SettingsError` unless random numbers can depend on a value."""
    check_whole("seed", value, 0, 2**62)


def check_flag(what: str, value: Any) -> None:
    """Raises a `SettingsError` unless a value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise SettingsError(f"The {what} must be True or False, not {described(value)}.")


def check_choice(what: str, value: Any, choices: Iterable[str]) -> None:
    """Raises a `SettingsError` unless a value is one of a few texts."""
    if not isinstance(value, str):
        raise SettingsError(f"The {what} must be one of {', '.join(choices)}, not {described(value)}.")
    if value not in choices:
        raise unknown(what, value, choices)


def check_kind(
    what: str, value: Any, kind: Any, how: str, error: type[InputError] = SettingsError, *, name: str | None = None
) -> None:
    """Raises an error unless a value is an instance of a kind, or of one of several; `how` says where to get one."""
    if not isinstance(value, kind):
        words = name or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
        raise error(f"The {what} must be {words}, not {described(value)}: {how}.")


def check_function(what: str, value: Any) -> None:
    """Raises a `SettingsError` unless a value can be called; a class cannot be meant."""
    if not callable(value) or inspect.isclass(value):
        raise SettingsError(f"The {what} must be a function, not {described(value)}.")


def check_optimiser(value: Any) -> None:
    """Raises a `SettingsError` unless a value makes an optimiser of a learning rate, as those of optax do."""
    check_function("optimiser", value)
    try:
        made = value(1e-3)
    except Exception as error:  # a user's function may raise anything
        made = error
    if not (hasattr(made, "init") and hasattr(made, "update")):
        raise SettingsError("The optimiser must be a function of a learning rate: give one such as optax.adam.")


def check_path(value: Any) -> None:
    """Raises a `SettingsError` unless a value can be the path of a file."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise SettingsError(f"The path must be that of a file, such as 'run.npz', not {described(value)}.")


def check_texts(what: str, values: Any) -> None:
    """Raises a `SettingsError` unless values are a list of texts, or a tuple or an array of them."""
    listed = isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim == 1)
    if not listed or not all(isinstance(value, str) for value in values):
        raise SettingsError(f"The {what} must be a list of texts, not {described(values)}.")


def real_array(what: str, values: Any, error: type[InputError] = SettingsError) -> np.ndarray:
    """The values as an array of real numbers or bools; an error where they are something else."""
    if hasattr(values, "toarray"):
        raise error(f"The {what} are a sparse matrix: pass its .toarray().")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # lists of different lengths, and objects that do not become arrays
        raise error(f"The {what} are not an array of numbers: give numbers, in rows of one length.") from None
    if array.dtype.kind not in "biuf":
        kind = "complex numbers" if np.iscomplexobj(array) else "text or objects"
        raise error(f"The {what} hold {kind} where real numbers are needed: code categories as numbers.")
    return array


def _number(value: Any) -> float | None:
    """A value as a float; None if it is no real number, or one of a bool's or an array's."""
    if isinstance(value, Real) and not isinstance(value, bool | np.bool_):
        try:
            return float(value)
        except OverflowError:
            return math.inf if operator.gt(value, 0) else -math.inf  # a whole number with hundreds of digits
    if isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and np.asarray(value).dtype.kind in "iuf":
        return float(np.asarray(value))
    return None
