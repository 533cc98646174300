"""A network that another library makes, such as Flax or Equinox, or a plain function, as a likelihood."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from partita.data.table import Table
from partita.errors import DataError, InputError, SettingsError
from partita.expectations import Expectation, LocalReparameterisation, MonteCarlo
from partita.families import Family
from partita.families.base import Theta
from partita.families.capabilities import IndependentGaussian
from partita.inputs import check_function, check_kind, described
from partita.models.base import Model, check_table
from partita.models.local_pass import FirstMoments, NotLocal, count_units, local_pass

__all__ = ["AppliedNetwork", "from_apply"]

_ROWS = 3
"""How many made-up rows tell whether one depends on others."""


class _Shared(NamedTuple):
    """What all draws of a pass share."""

    x: Float[Array, "n d"]
    first: FirstMoments
    mean: Theta
    variance: Theta


class AppliedNetwork(Model):
    """p(y | θ) = exp(−loss(apply(θ, x), y)) of every row of a `Table`, with θ shaped like the parameters."""

    apply: Callable[..., Any] = eqx.field(static=True)
    loss: Callable[..., Any] = eqx.field(static=True)
    inverse_link: Callable[..., Any] | None = eqx.field(static=True)
    """From outputs to the response; the outputs are the response if None."""
    layout: tuple[Any, tuple[tuple[int, ...], ...], str] = eqx.field(static=True)
    """Tree, shapes and type of the parameters."""
    expectation: Expectation = eqx.field(kw_only=True)

    def template(self) -> Theta:
        """A θ of zeros, to build a prior on."""
        tree, shapes, kind = self.layout
        return jax.tree.unflatten(tree, [jnp.zeros(shape, jax.dtypes.canonicalize_dtype(kind)) for shape in shapes])

    def check(self, data: Table) -> None:
        check_table(data)
        if _rows_meet(self.apply, self.layout, np.shape(data.x)[1]):
            raise DataError(
                "the network's outputs of a row depend on other rows, as with batch normalisation: "
                "normalise within a row"
            )

    def log_density(self, theta: Theta, datum: Table) -> Float[Array, ""]:
        return self.log_density_at(self.apply(theta, datum.x[None]), jax.tree.map(lambda leaf: leaf[None], datum))[0]

    def log_density_at(self, predictor: PyTree, data: Table) -> Float[Array, " n"]:
        losses = jnp.asarray(self.loss(predictor, data.y))
        if losses.shape != data.y.shape:
            raise SettingsError(f"The loss of {len(data.y)} rows has the shape {losses.shape}: give one number a row.")
        return -losses

    def shared(self, q: Family, data: Table) -> _Shared:
        if not isinstance(q, IndependentGaussian):
            raise SettingsError("Local reparameterisation of a network needs a mean-field Gaussian: use MonteCarlo.")
        mean, variance = q.standard()
        with _with_remedy():
            first = jax.vmap(lambda x: local_pass(self.apply, mean, variance, x).first)(data.x)
        return _Shared(data.x, first, mean, variance)

    def noise_shape(self, shared: _Shared) -> tuple[int, ...]:
        row = jax.ShapeDtypeStruct(shared.x.shape[1:], shared.x.dtype)
        return count_units(self.apply, shared.mean, row), len(shared.x)

    def predictor_at(self, shared: _Shared, noise: Float[Array, "u n"]) -> PyTree:
        """The outputs of every row, with draws of what reaches its units."""

        def one(x: Float[Array, " d"], first: FirstMoments, noise: Float[Array, " u"]) -> PyTree:
            return local_pass(self.apply, shared.mean, shared.variance, x, noise, first).outputs

        return jax.vmap(one, in_axes=(0, 0, 1))(shared.x, shared.first, noise)

    def response(self, theta: Theta, x: Float[Array, "n d"]) -> Array:
        return self.response_at(self.apply(theta, x))

    def response_at(self, predictor: PyTree) -> Array:
        found: Array = predictor if self.inverse_link is None else self.inverse_link(predictor)
        return found


@contextlib.contextmanager
def _with_remedy() -> Iterator[None]:
    """Says what to do where a network has no local draws."""
    try:
        yield
    except NotLocal:
        raise SettingsError(
            "A parameter of the network does more than multiply, scale or shift what a row brings: use MonteCarlo."
        ) from None


def from_apply(
    apply: Callable[..., Any],
    parameters: Theta,
    loss: Callable[..., Any],
    *,
    response: Callable[..., Any] | None = None,
    expectation: Expectation | None = None,
) -> AppliedNetwork:
    """A network of Flax, Equinox or plain functions as a likelihood for `run`.

    Args:
        apply: the outputs of rows, `apply(parameters, x)` with x of shape (n, d), such as `model.apply` of Flax's
            linen, or `lambda p, x: jax.vmap(equinox.combine(p, static))(x)`.
        parameters: a pytree of arrays, such as the initial ones; θ is shaped like it.
        loss: of outputs and responses y the −log p(y | θ) of every row, in nats and with its constants.
        response: of outputs what `predict` returns, such as `jax.nn.softmax`; the outputs if None.
        expectation: how E_q of a row's log density is computed. If None it is `LocalReparameterisation()` where what
            reaches the units is Gaussian given the row, as in dense layers; else `MonteCarlo()`, whose draws all rows
            share, as for convolutions.

    Returns:
        The likelihood; priors are built on its `template()`, and runs start near `parameters` if those are its `start`.

    """
    check_function("network's apply", apply)
    check_function("loss", loss)
    if response is not None:
        check_function("response", response)
    leaves, tree = jax.tree.flatten(parameters)
    if not leaves or not all(_is_array(leaf) for leaf in leaves):
        raise SettingsError(f"Give the parameters as a pytree of arrays of real numbers, not {described(parameters)}.")
    if expectation is None:
        expectation = LocalReparameterisation() if _is_local(apply, parameters) else MonteCarlo()
    else:
        check_kind("expectation", expectation, Expectation, "use one of partita.expectations", name="an Expectation")
    kind = np.result_type(*leaves).str
    return AppliedNetwork(apply, loss, response, (tree, tuple(map(np.shape, leaves)), kind), expectation=expectation)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array) and np.issubdtype(leaf.dtype, np.floating)


@functools.lru_cache(maxsize=64)
def _rows_meet(apply: Callable[..., Any], layout: tuple[Any, tuple[tuple[int, ...], ...], str], columns: int) -> bool:
    """Whether outputs of rows cease to be numbers when another row does: anything that is computed of several does."""
    tree, shapes, kind = layout
    generator = np.random.default_rng(0)
    leaves = [jnp.asarray(generator.normal(size=shape) / 4, jax.dtypes.canonicalize_dtype(kind)) for shape in shapes]
    x = generator.normal(size=(_ROWS, columns))

    @jax.jit
    def lost(x: Float[Array, "r d"]) -> Bool[Array, " r"]:
        outputs = jax.tree.leaves(apply(jax.tree.unflatten(tree, leaves), x))
        return jnp.stack([jnp.isnan(leaf.reshape(_ROWS, -1)).any(axis=1) for leaf in outputs]).any(axis=0)

    with contextlib.suppress(Exception):  # what does not run tells so when it is fitted
        before = np.asarray(lost(x))
        for place in (0, _ROWS - 1):
            away = np.arange(_ROWS) == place
            if (np.asarray(lost(np.where(away[:, None], np.nan, x))) & ~before & ~away).any():
                return True
    return False


def _is_local(apply: Callable[..., Any], parameters: Theta) -> bool:
    """Whether a pass over one row makes independent Gaussians of the parameters, with as many columns as it takes."""
    kind = np.result_type(*jax.tree.leaves(parameters))
    for columns in sorted({size for leaf in jax.tree.leaves(parameters) for size in leaf.shape}, reverse=True):
        try:
            count_units(apply, parameters, jax.ShapeDtypeStruct((columns,), kind))
        except InputError:
            raise
        except Exception:  # so many columns do not fit, or a parameter is used otherwise
            continue
        return True
    return False
