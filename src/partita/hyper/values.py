"""Hyperparameters ε by name: leaves of the model, and scales of the prior (`sec:hyper_learning`).

They are a dict from names to arrays. The server stores them, tasks carry them, and `model_given` and `prior_given`
insert them into model and prior. Positive ones are learned on the log scale: the optimiser sees unconstrained values u.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float

from partita.errors import SettingsError, unknown
from partita.families import Family
from partita.families.base import Theta
from partita.models import Model
from partita.numerics.compiled import Compiled, Scalar

__all__ = [
    "PRIOR_SCALES",
    "Hyper",
    "begin",
    "bound_gradient",
    "compiled_prior_given",
    "constrained",
    "likelihood_hyper",
    "model_given",
    "model_leaves",
    "positive",
    "possible",
    "prior_given",
    "unconstrained",
]

Hyper: TypeAlias = Mapping[str, Float[Array, "..."]]
"""Values of hyperparameters by their names, or a gradient in them."""


def _shared(scale: Float[Array, ""], theta: Theta) -> Theta:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(scale, leaf.shape), theta)


def _each(scales: Float[Array, " d"], theta: Theta) -> Theta:
    return ravel_pytree(theta)[1](scales)


def _layers(scales: Float[Array, " l"], theta: Theta) -> Theta:
    layers, treedef = _parts(theta)
    return jax.tree.unflatten(treedef, [_shared(scale, layer) for scale, layer in zip(scales, layers, strict=True)])


def _parts(theta: Theta) -> tuple[list[Theta], jax.tree_util.PyTreeDef]:
    """The groups that θ has at its top, such as a network's layers."""
    return jax.tree.flatten(theta, is_leaf=lambda node: node is not theta)


PRIOR_SCALES: Mapping[str, tuple[Callable[[Array, Theta], Theta], Callable[[Theta], tuple[int, ...]]]] = {
    "prior_scale": (_shared, lambda theta: ()),
    "prior_scales": (_each, lambda theta: (sum(leaf.size for leaf in jax.tree.leaves(theta)),)),
    "layer_scales": (_layers, lambda theta: (len(_parts(theta)[0]),)),
}
"""Multipliers of the prior's standard deviations: one for all parameters, one per parameter (automatic relevance
determination), or one per top-level group of θ, such as a network's layers. Each name maps to a function that
broadcasts the scales over θ and one that gives their shape."""


def begin(model: Model, prior: Family, names: Sequence[str]) -> Hyper:
    """The initial values of the named hyperparameters; raises an `InputError` for one that cannot be learned.

    They have the prior's dtype, so that the posterior keeps it.
    """
    leaves, dtype = model_leaves(model), jax.tree.leaves(prior)[0].dtype
    if clash := [name for name in names if name in PRIOR_SCALES and name in leaves]:
        raise SettingsError(f"{clash[0]} is a name in both the model and the prior: rename the model's.")
    found = dict[str, Array]()
    for name in names:
        if name in PRIOR_SCALES:
            found[name] = jnp.ones(PRIOR_SCALES[name][1](prior.moments()[0]), dtype)
            prior_given(prior, found)
        elif name in leaves:
            found[name] = jnp.asarray(leaves[name], dtype)
        else:
            raise unknown("hyperparameter", name, [*leaves, *PRIOR_SCALES])
        if name in positive(model, names) and not np.all(np.asarray(found[name]) > 0):
            raise SettingsError(f"The initial {name} must be above 0, not {found[name]}.")
    if sum(name in PRIOR_SCALES for name in names) > 1:
        raise SettingsError("prior_scale, prior_scales and layer_scales exclude one another: name only one.")
    return found


def positive(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the positive hyperparameters."""
    return tuple(name for name in names if name in PRIOR_SCALES or name in model.positive)


def model_leaves(model: Model) -> dict[str, Float[ArrayLike, "..."]]:
    """The model's own hyperparameters: its leaves of floating-point numbers, by their paths."""
    paths = jax.tree_util.tree_leaves_with_path(model)
    return {_name(path): leaf for path, leaf in paths if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)}


def model_given(model: Model, hyper: Hyper) -> Model:
    """p(y | θ, ε)."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(model)
    return jax.tree.unflatten(treedef, [hyper.get(_name(path), leaf) for path, leaf in paths])


def prior_given(prior: Family, hyper: Hyper) -> Family:
    """p(θ | ε): the given prior, scaled about its mean."""
    for name, (spread, _) in PRIOR_SCALES.items():
        if name in hyper:
            return prior.stretched(spread(hyper[name], prior.moments()[0]))
    return prior


def possible(hyper: Hyper, positive: Sequence[str]) -> bool:
    """Whether all of ε are finite, and the positive ones above 0."""
    return all(
        np.isfinite(value).all() and (name not in positive or np.all(np.asarray(value) > 0))
        for name, value in hyper.items()
    )


def likelihood_hyper(hyper: Hyper) -> Hyper:
    """The hyperparameters of the likelihood, for which clients compute gradients."""
    return {name: value for name, value in hyper.items() if name not in PRIOR_SCALES}


def unconstrained(hyper: Hyper, positive: Sequence[str]) -> Hyper:
    """u: the logarithm of positive hyperparameters, the others unchanged."""
    return {name: jnp.log(value) if name in positive else value for name, value in hyper.items()}


def constrained(u: Hyper, positive: Sequence[str]) -> Hyper:
    """ε of u."""
    return {name: jnp.exp(value) if name in positive else value for name, value in u.items()}


@Compiled
def bound_gradient(
    prior: Family, q: Family, hyper: Hyper, clients: Hyper, positive: tuple[str, ...], temperature: Scalar
) -> Hyper:
    """∇_u F: the sum of the clients' gradients in ε, and that of −KL(q ‖ p(ε)), by the chain rule in u."""

    def negative_divergence(u: Hyper) -> Float[Array, ""]:
        return -temperature * q.kl(prior_given(prior, constrained(u, positive)))

    u = unconstrained(hyper, positive)
    own = jax.grad(negative_divergence)(u)
    _, pull = jax.vjp(lambda v: likelihood_hyper(constrained(v, positive)), u)
    return jax.tree.map(jnp.add, own, pull(clients)[0])


compiled_prior_given = Compiled(prior_given)


def _name(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
