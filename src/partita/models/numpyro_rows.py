"""Whether the rows of a NumPyro model are independent given what is shared, as PVI takes them to be."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from partita.errors import SettingsError
from partita.models.numpyro_members import numbered
from partita.models.numpyro_sites import Sites
from partita.models.numpyro_trace import Rows, Trace, failing, scaled, total, traced

__all__ = ["check_rows"]

_TOLERANCE = 1e-4
"""How far densities may be from each other, relative to them: models may hold numbers in single precision."""


class _Said(NamedTuple):
    """Log densities of rows among others, and of the same rows by themselves."""

    together: Float[Array | np.ndarray, " n"]
    alone: Float[Array | np.ndarray, " n"]
    rest_together: Float[Array | np.ndarray, ""]
    """Of sites whose density is one of all rows."""
    rest_alone: Float[Array | np.ndarray, " n"]
    priors: Float[Array | np.ndarray, " 2"]
    """With these rows, and with a row of zeros."""
    members: Float[Array | np.ndarray, " 2"]
    """Of local variables, among other members and by themselves."""


def check_rows(model: Callable[..., Any], rows: Rows, sites: Sites) -> None:
    """Raises an `InputError` where a row's density is not its own, or priors depend on rows."""
    rows, others = _told_apart(rows), "each other"
    given = "the shared sites"
    if sites.local is not None:
        others, given = "each other or on other members' local variables", "the shared sites and its member's own"
    with enable_x64(True), failing("on single rows"):
        said = _Said(*(np.asarray(each, float) for each in _said(model, rows, sites)))
        reaching = _reaching(model, rows, sites)
    separate = _same(said.together, said.alone) & ~reaching
    whole = np.append(said.rest_alone, 0.0)
    if not separate.all() or not _same(said.rest_together, whole.sum(), np.abs(whole).sum()):
        raise SettingsError(
            f"The rows of the NumPyro model depend on {others}: let the density of a row be its own, given {given}."
        )
    if not _same(*said.members):
        raise SettingsError(
            "The local variables of the NumPyro model depend on other members or on rows: let each member's be "
            "independent given the shared sites."
        )
    if not _same(*said.priors):
        beside = "" if sites.local is None else " or on local variables"
        raise SettingsError(
            f"The priors of the NumPyro model depend on rows{beside}, which the server lacks: fix what they need."
        )


def _same(one: ArrayLike, other: ArrayLike, size: ArrayLike | None = None) -> np.ndarray:
    """Whether densities agree, as far as they are finite."""
    one, other = np.asarray(one), np.asarray(other)
    bound = _TOLERANCE * (1 + np.asarray(np.abs(other) if size is None else size))
    return np.asarray(~np.isfinite(other) | (np.abs(one - other) <= bound))


def _told_apart(rows: Rows) -> Rows:
    """Rows that differ: those that are all the same, such as made-up ones, do not show whether they depend on others.

    Their fractions move towards 0, or a little above it, where they still mean what they did.
    """
    if len(next(iter(rows.values()))) == 1:
        rows = {name: np.concatenate([values, values]) for name, values in rows.items()}
    if any(np.any(values != values[:1]) for values in rows.values()):
        return rows
    drawn, found = np.random.default_rng(0), dict[str, np.ndarray]()
    for name, values in rows.items():
        noise = drawn.random(values.shape) / 2
        moved = np.where(values == 0, noise, values * (1 - noise)).astype(values.dtype)
        found[name] = moved if np.issubdtype(values.dtype, np.floating) else np.asarray(values)
    return found


def _said(model: Callable[..., Any], rows: Rows, sites: Sites) -> _Said:
    own, local = (*sites.observed, *sites.discrete), sites.local
    prior = (*(site.name for site in sites.shared), *sites.given)
    column, of_members = None, tuple[str, ...]()
    members, many, one_member = np.arange(len(next(iter(rows.values())))), dict[str, Array](), dict[str, Array]()
    if local is not None:
        column, of_members = local.column, tuple(site.name for site in local.sites)
        if column is None:
            own, of_members = own + of_members, ()
        else:
            rows, members = numbered(rows, column)
            many, one_member = {local.plate: jnp.arange(int(members.max()) + 1)}, {local.plate: jnp.arange(1)}
    axes = dict(sites.axes)
    plated = {} if local is None else {site.name: axis for site, axis in zip(local.sites, local.axes, strict=True)}

    @jax.jit
    def densities(rows: Rows) -> _Said:
        trace = traced(model, rows, {}, many)
        shared = {site.name: trace[site.name]["value"] for site in sites.shared}
        moved = {name: jnp.moveaxis(trace[name]["value"], axes[name], 0) for name in sites.discrete}
        mine = {name: jnp.moveaxis(trace[name]["value"], axis, 0) for name, axis in plated.items()}

        def fixed(values: Mapping[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
            return {name: jnp.expand_dims(value, axes[name]) for name, value in values.items()}

        def one(row: PyTree, discrete: PyTree, member: PyTree) -> tuple[Array, Array]:
            alone = {name: value[None] * 0 if name == column else value[None] for name, value in row.items()}
            values = shared | fixed(discrete, axes) | fixed(member, plated) | one_member
            by_row, rest = _by_row(traced(model, alone, {}, values), own, axes, 1)
            return by_row[0], rest

        zeros = {name: jnp.zeros_like(values[:1]) for name, values in rows.items()}

        def without(member: PyTree) -> Trace:
            return traced(model, zeros, {}, shared | fixed(member, plated) | one_member)

        by_row, rest = _by_row(trace, own, axes, len(members))
        each, each_rest = jax.vmap(one)(rows, moved, jax.tree.map(lambda leaf: leaf[members], mine))
        first = without(jax.tree.map(lambda leaf: leaf[0], mine))
        priors = jnp.stack([total(trace, prior), total(first, prior)])
        alone = jnp.zeros(())
        if of_members:
            alone = jnp.sum(jax.vmap(lambda member: total(without(member), of_members))(mine))
        return _Said(by_row, each, rest, each_rest, priors, jnp.stack([total(trace, of_members), alone]))

    return densities(dict(rows))


def _by_row(
    trace: Trace, names: Collection[str], axes: Mapping[str, int], count: int
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The log density of each row, and what is one of all rows."""
    found, rest = jnp.zeros(count), jnp.zeros(())
    for name in names:
        density = scaled(trace[name])
        axis = axes.get(name, 0)
        if axis < density.ndim and density.shape[axis] == count:
            found += jnp.sum(jnp.moveaxis(density, axis, 0).reshape(count, -1), axis=1)
        else:
            rest += jnp.sum(density)
    return found, rest


def _reaching(model: Callable[..., Any], rows: Rows, sites: Sites) -> Bool[np.ndarray, " n"]:
    """Which rows' densities cease to be numbers when the first or the last of the others does.

    Whatever is computed of several rows does so, be it ever so small.
    """
    plates, local, count = {}, sites.local, len(next(iter(rows.values())))
    if local is not None and local.column is not None:
        rows, members = numbered(rows, local.column)
        plates = {local.plate: jnp.arange(int(members.max()) + 1)}
    fractions = {name for name, values in rows.items() if np.issubdtype(values.dtype, np.floating)}

    @jax.jit
    def lost(rows: Rows) -> Bool[Array, " n"]:
        trace = traced(model, rows, {}, plates)
        return jnp.isnan(_by_row(trace, sites.observed, dict(sites.axes), count)[0])

    found, before = np.zeros(count, bool), np.asarray(lost(dict(rows)))
    for place in (0, count - 1):
        away = np.arange(count) == place
        spoilt = {name: _spoilt(values, away) if name in fractions else values for name, values in rows.items()}
        found |= np.asarray(lost(spoilt)) & ~before & ~away
    return found


def _spoilt(values: Array | np.ndarray, away: Bool[np.ndarray, " n"]) -> np.ndarray:
    return np.where(away.reshape(-1, *(1,) * (values.ndim - 1)), np.nan, values).astype(values.dtype)
