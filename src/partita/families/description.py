"""A family's structure as JSON, so that a file of natural parameters can be read without a template."""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita import families
from partita.errors import DamagedFileError
from partita.families.base import Family
from partita.families.layout import Layout

__all__ = ["describe", "template"]


def describe(member: Family) -> dict[str, Any]:
    """The classes, fields, shapes and types of a member; JSON can hold it."""
    return dict(_described(member.plain()))


def _described(node: Any) -> Mapping[str, Any]:
    if isinstance(node, Family):
        fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        return {"family": type(node).__name__, "fields": {name: _described(value) for name, value in fields.items()}}
    if isinstance(node, Layout):
        leaves = [np.empty(shape) for shape in node.shapes]
        return {"layout": _described(jax.tree.unflatten(node.treedef, leaves))}
    if isinstance(node, Mapping):
        return {"dict": {name: _described(value) for name, value in node.items()}}
    if isinstance(node, tuple | list):
        return {type(node).__name__: [_described(value) for value in node]}
    if node is None:
        return {"none": True}
    if isinstance(node, int):
        return {"whole": node}
    return {"shape": list(np.shape(node)), "dtype": np.dtype(jnp.result_type(node)).str}


def template(description: Any) -> Any:
    """A member of zeros with this structure; a `DamagedFileError` where it is none."""
    try:
        return _template(description)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"The file does not describe a family: {error}.") from None


def _template(node: Mapping[str, Any]) -> Any:
    (kind, value), *rest = node.items()
    if kind == "family":
        if value not in families.__all__:
            raise ValueError(f"there is no family named {value!r}")
        member = object.__new__(getattr(families, value))
        for name, part in node["fields"].items():
            object.__setattr__(member, name, _template(part))
        return member
    if kind == "layout":
        return Layout.of(_template(value))
    if kind == "dict":
        return {name: _template(part) for name, part in value.items()}
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(_template(part) for part in value)
    if kind == "none":
        return None
    if kind == "whole":
        return operator.index(value)
    return jnp.zeros(tuple(value), dict(rest)["dtype"])
