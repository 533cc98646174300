"""A digest of method, model and prior, the same in every process; server and clients compare it."""

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

__all__ = ["digest", "number_digest"]


def digest(*things: Any, code: bool = False) -> str:
    """A hash of these trees, as sixteen hexadecimal digits.

    Arrays count with their type, shape and bytes, modules and dataclasses with all their fields, functions with their
    names, defaults and what they close over; with their `code` only if asked for, since no two versions of Python
    compile it alike.
    """
    found = hashlib.sha256()
    for part in _parts(things, (), code):
        found.update(part)
        found.update(b"\0")
    return found.hexdigest()[:16]


def number_digest(*things: Any) -> int:
    """A hash of these trees as a whole number above 0, which fits an array of integers."""
    return int(digest(*things)[:15], 16) + 1


def _parts(thing: Any, above: tuple[int, ...], code: bool) -> Iterator[bytes | memoryview]:
    """The thing as a sequence of bytes; `above` are the functions it is part of, which may refer to themselves."""
    if isinstance(thing, bool | str | None | enum.Enum):
        yield repr(thing).encode()
    elif isinstance(thing, int | float):
        yield repr(float(thing)).encode()
    elif isinstance(thing, jax.Array | np.ndarray | np.generic):
        if isinstance(thing, jax.Array) and jax.dtypes.issubdtype(thing.dtype, jax.dtypes.prng_key):
            thing = jax.random.key_data(thing)
        array = np.asarray(thing)
        yield f"{array.dtype.str}{array.shape}".encode() if array.ndim else b"number"
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.ndim else repr(array.item()).encode()
    elif isinstance(thing, Mapping):
        yield str(len(thing)).encode()
        for key in sorted(thing, key=repr):
            yield repr(key).encode()
            yield from _parts(thing[key], above, code)
    elif isinstance(thing, functools.partial):
        yield from _parts((thing.func, thing.args, thing.keywords), above, code)
    elif isinstance(thing, types.FunctionType | type):
        yield f"{thing.__module__}.{thing.__qualname__}".encode()
        if isinstance(thing, types.FunctionType) and id(thing) not in above:
            cells = [_contents(cell) for cell in thing.__closure__ or ()]
            if code:
                yield from _code(thing.__code__)
            yield from _parts((thing.__defaults__, thing.__kwdefaults__, cells), (*above, id(thing)), code)
    elif isinstance(thing, types.MethodType):
        yield from _parts((thing.__func__, thing.__self__), above, code)
    elif callable(thing) and hasattr(thing, "__wrapped__") and id(thing) not in above:
        yield from _parts(thing.__wrapped__, (*above, id(thing)), code)
    else:
        yield f"{type(thing).__module__}.{type(thing).__qualname__}".encode()
        if dataclasses.is_dataclass(thing):
            fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
            yield from _parts(fields, above, code)
        elif isinstance(thing, set | frozenset):
            yield from sorted(digest(item, code=code).encode() for item in thing)
        elif isinstance(thing, tuple | list):
            yield str(len(thing)).encode()
            for item in thing:
                yield from _parts(item, above, code)
        elif isinstance(thing, jax.tree_util.PyTreeDef):
            yield str(thing).encode()
        elif id(thing) not in above:
            yield from _parts(getattr(thing, "__dict__", {}), (*above, id(thing)), code)


def _code(code: types.CodeType) -> Iterator[bytes]:
    """A function's instructions, the names and constants they use, and functions within it."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode()


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
