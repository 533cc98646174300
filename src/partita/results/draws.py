"""Draws of θ by the names that users know, and in ArviZ's form."""

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Shaped

from partita.errors import MissingExtraError
from partita.expectations.capabilities import NamedValues
from partita.families.base import Theta
from partita.models import Model

if TYPE_CHECKING:
    from xarray import DataTree

__all__ = ["CHAINS", "draws_by_name", "draws_to_arviz"]

CHAINS = 4
"""Draws are independent; programs that compare chains find four."""


def draws_by_name(model: Model, theta: Theta) -> dict[str, Shaped[np.ndarray, "s ..."]]:
    """The values of what a model names at draws of θ; else θ's own leaves, by their places in it."""
    if isinstance(model, NamedValues):
        return dict(model.values(theta))
    leaves = jax.tree_util.tree_leaves_with_path(theta)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "theta": np.asarray(leaf) for path, leaf in leaves
    }


def draws_to_arviz(draws: Mapping[str, Shaped[np.ndarray, "s ..."]]) -> "DataTree":
    """Draws as the posterior of ArviZ's form, in four chains; their number is a multiple of four."""
    try:
        from arviz_base import from_dict
    except ImportError:
        raise MissingExtraError("arviz-base", "arviz") from None
    chains = {name: value.reshape(CHAINS, -1, *value.shape[1:]) for name, value in draws.items()}
    about = {"creation_library": "partita", "creation_library_version": metadata.version("partita")}
    tree: DataTree = from_dict({"posterior": chains}, attrs={"/": about})
    return tree
