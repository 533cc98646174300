"""Strict parsing of TOML settings into dataclasses."""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from partita.errors import SettingsError, unknown

__all__ = ["build", "call", "parse"]

T = TypeVar("T")


def parse(contents: bytes, source: str) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(contents.decode())
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits, and lists in lists in lists
        raise SettingsError(f"{source} is not a TOML file: {error}.") from None


def call(function: Callable[..., T], settings: Mapping[str, Any], what: str) -> T:
    """Calls a function with the user's settings; an unknown setting raises an `InputError`."""
    try:
        return function(**settings)
    except TypeError as error:
        raise SettingsError(f"The {what} has an invalid setting: {error}.") from None


def build(kind: type[T], contents: Mapping[str, Any], source: str) -> T:
    """A dataclass from a TOML table; unknown and missing keys raise an `InputError`."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    word = kind.__name__.lower()
    article = "an" if word[0] in "aeiou" else "a"
    for key in contents:
        if key not in fields:
            raise unknown(f"setting of {word} in {source}", key, fields)
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in contents:
            raise SettingsError(f"{source} has {article} {word} without {name!r}: add it.")
    hints = typing.get_type_hints(kind)
    return kind(**{key: _value(key, value, hints[key], source) for key, value in contents.items()})


def _value(key: str, value: Any, hint: Any, source: str) -> Any:
    """Converts a value to its field's type: tables to dataclasses, lists to tuples, integers to floats."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # a table that may be left out
        return _value(key, value, arguments[0], source)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return build(hint, value, source)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(key, item, arguments[0], source) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is Literal and value in arguments:
        return value
    if origin is Mapping and isinstance(value, dict):
        return value
    if isinstance(hint, type) and type(value) is hint:
        return value
    expected = f"one of {', '.join(map(str, arguments))}" if origin is Literal else _WORDS.get(hint, "a list or table")
    raise SettingsError(f"{source} has {value!r} for {key!r}, where {expected} is expected.")


_WORDS: Mapping[Any, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
