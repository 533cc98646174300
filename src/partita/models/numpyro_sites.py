"""The sites of a NumPyro model: which belong to all rows, which to a single row, and which to neither."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from partita.errors import DataError, InputError, MissingExtraError, SettingsError

__all__ = ["Rows", "Sites", "Trace", "read_sites", "total", "traced"]

Rows = Mapping[str, Shaped[Array | np.ndarray, "n ..."]]
"""What the model is called with, by the names of its arguments, with rows first."""
Trace = Mapping[str, dict[str, Any]]
"""The sites that a model went through, by name, as NumPyro has them."""
_COMBINATIONS = 4096
"""The largest number of values that a row's discrete variables can have together."""
_TOLERANCE = 1e-3
"""How far the rows' densities, one by one, may be from those of all, relative to them: single precision is enough."""


class _SharedSite(NamedTuple):
    """Variables that all rows share."""

    name: str
    shape: tuple[int, ...]
    """Without constraints."""
    real: bool
    """Whether they are so already."""

    @property
    def size(self) -> int:
        """How many numbers they are."""
        return math.prod(self.shape)


class Sites(eqx.Module):
    """What a model's sites are."""

    shared: tuple[_SharedSite, ...] = eqx.field(static=True)
    """Of θ, in its order."""
    given: tuple[str, ...] = eqx.field(static=True)
    """Observed sites and factors that do not depend on rows; with the shared ones they are the prior."""
    observed: tuple[str, ...] = eqx.field(static=True)
    """Observed sites of rows: the likelihood."""
    discrete: Mapping[str, Int[np.ndarray, "c ..."]]
    """Of a row's discrete variables the values, all combinations along the first axis."""


def traced(
    model: Callable[..., Any],
    rows: Rows,
    free: Mapping[str, Array],
    fixed: Mapping[str, Array],
    key: Key[Array, ""] | None = None,
) -> tuple[Trace, Float[Array, ""]]:
    """The model's trace at values without constraints, and fixed values of other sites; with log|dθ/du| of the former.

    Sites of neither are drawn from their distributions, with the key or the same one each time.
    """
    try:
        from numpyro import handlers
        from numpyro.distributions import biject_to
    except ImportError:
        raise MissingExtraError("numpyro", "numpyro") from None
    stretches = [jnp.zeros(())]

    def value(site: dict[str, Any]) -> Array | None:
        name = site["name"]
        if site["type"] != "sample" or name not in free:
            return fixed.get(name)
        transform = biject_to(site["fn"].support)
        found: Array = transform(free[name])
        stretches.append(jnp.sum(transform.log_abs_det_jacobian(free[name], found)))
        return found

    program = handlers.seed(
        handlers.substitute(model, substitute_fn=value), rng_seed=jax.random.key(0) if key is None else key
    )
    return handlers.trace(program).get_trace(**rows), sum(stretches[1:], stretches[0])


def total(trace: Trace, names: Collection[str]) -> Float[Array, ""]:
    """The sum of these sites' log densities."""
    found = jnp.zeros(())
    for name in names:
        site = trace[name]
        scale = 1.0 if site["scale"] is None else site["scale"]
        found += jnp.sum(scale * site["fn"].log_prob(site["value"]))
    return found


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Anything that a user's model raises becomes one sentence."""
    try:
        yield
    except InputError:
        raise
    except NotImplementedError as error:
        raise SettingsError(
            f"A site of the NumPyro model cannot be drawn from {what}: give it a proper distribution."
        ) from error
    except Exception as error:  # a user's model may raise anything
        why = (str(error) or repr(error)).splitlines()[0].rstrip(".")
        raise SettingsError(f"The NumPyro model fails {what}: {why:.200}.") from error


class _Seen(NamedTuple):
    """What a site is, without its values."""

    kind: str
    """Sample, plate, param and so on, as NumPyro calls them."""
    size: int
    """Of a plate."""
    shape: tuple[int, ...]
    plates: tuple[tuple[str, int], ...]
    """Those that it is in, with the places of their axes among those of its values, from the front."""
    observed: bool
    shared: _SharedSite | None
    """What it is if all rows share it; None if it is discrete."""
    support: np.ndarray | None
    """The values of one element, if it is discrete and they are finitely many."""


def read_sites(model: Callable[..., Any], rows: Rows, shared: Collection[str], local: Collection[str]) -> Sites:
    """What the sites are; raises an `InputError` where they do not say what belongs to whom."""
    count = len(next(iter(rows.values())))
    if count == 1:
        rows, count = {name: np.concatenate([values, values]) for name, values in rows.items()}, 2
    seen = _looked_at(model, rows, count)
    single = _looked_at(model, {name: values[:1] for name, values in rows.items()}, 1)
    if set(seen) != set(single):
        raise SettingsError("The NumPyro model has other sites with fewer rows: give it the same for any number.")
    sizes = {name: (site.size, single[name].size) for name, site in seen.items() if site.kind == "plate"}
    own = {name for name, size in sizes.items() if size == (count, 1)}
    _check_plates(sizes, own, shared, local)
    discrete = dict[str, np.ndarray]()
    found, given, observed = list[_SharedSite](), list[str](), list[str]()
    for name, site in seen.items():
        if site.kind == "param":
            raise SettingsError(f"The parameter {name!r} has no prior: make it a numpyro.sample.")
        if site.kind != "sample":
            continue
        plates = {plate for plate, _ in site.plates}
        of_rows = bool(plates & own) or site.shape != single[name].shape
        if site.observed:
            if plates and not plates & own and (of_rows or not plates <= set(shared)):
                fixed = site.plates[0][0]
                raise _other_size(fixed, sizes[fixed][0], 1 if sizes[fixed][0] == count else count)
            (observed if of_rows else given).append(name)
        elif site.shared is None:
            if not plates & own:
                raise SettingsError(
                    f"The discrete site {name!r} is in no plate of the rows: only a row's own can be summed out."
                )
            discrete[name] = _combinations(name, site.support, single[name].shape)
        else:
            _check_shared(name, plates, of_rows, shared, local)
            found.append(site.shared)
    if not observed:
        raise SettingsError("The NumPyro model observes nothing of these rows: give the site of their response obs=….")
    if not found:
        raise SettingsError("The NumPyro model has no variable that rows share: there is nothing to infer.")
    sites = Sites(tuple(found), tuple(given), tuple(observed), _combined(discrete))
    axes = {name: next(axis for plate, axis in seen[name].plates if plate in own) for name in discrete}
    _check_rows(model, _told_apart(rows), sites, axes)
    return sites


def _told_apart(rows: Rows) -> Rows:
    """Rows that differ: those that are all the same, such as made-up ones, do not show whether they depend on others.

    Their fractions move towards 0, or a little above it, where they still mean what they did.
    """
    if any(np.any(values != values[:1]) for values in rows.values()):
        return rows
    drawn, found = np.random.default_rng(0), dict[str, np.ndarray]()
    for name, values in rows.items():
        noise = drawn.random(values.shape) / 2
        moved = np.where(values == 0, noise, values * (1 - noise)).astype(values.dtype)
        found[name] = moved if np.issubdtype(values.dtype, np.floating) else np.asarray(values)
    return found


def _looked_at(model: Callable[..., Any], rows: Rows, count: int) -> Mapping[str, _Seen]:
    """The sites on so many rows; nothing is computed. An error tells of a plate with another size, if there is one."""
    found, plates = dict[str, _Seen](), list[dict[str, Any]]()

    def noting(**rows: Any) -> None:
        from numpyro import handlers

        with handlers.trace() as trace:
            try:
                model(**rows)
            finally:
                plates.extend(site for site in trace.values() if site["type"] == "plate")

    def look(rows: Rows) -> None:
        trace, _ = traced(noting, rows, {}, {})
        found.update((name, _seen(name, site)) for name, site in trace.items())

    with _failing("on a single row" if count == 1 else f"on {count} rows"):
        try:
            jax.eval_shape(look, rows)
        except (TypeError, ValueError) as error:
            other = [plate for plate in plates if int(plate["args"][0]) != count]
            if isinstance(error, InputError) or not other:
                raise
            raise _other_size(other[0]["name"], int(other[0]["args"][0]), count) from None
    return found


def _seen(name: str, site: dict[str, Any]) -> _Seen:
    if site["type"] != "sample":
        size = int(site["args"][0]) if site["type"] == "plate" else 0
        return _Seen(site["type"], size, (), (), False, None, None)
    law, shape = site["fn"], np.shape(site["value"])
    batch = len(shape) - len(law.event_shape)
    plates = tuple((frame.name, batch + int(frame.dim)) for frame in site["cond_indep_stack"])
    if site["is_observed"]:
        return _Seen("sample", 0, shape, plates, True, None, None)
    if law.support.is_discrete:
        return _Seen("sample", 0, shape, plates, False, None, _support(name, law))
    return _Seen("sample", 0, shape, plates, False, _shared_site(name, law, shape), None)


def _shared_site(name: str, law: Any, shape: tuple[int, ...]) -> _SharedSite:
    from numpyro.distributions import biject_to, transforms

    transform = biject_to(law.support)
    while isinstance(transform, transforms.IndependentTransform):
        transform = transform.base_transform
    real = isinstance(transform, transforms.IdentityTransform)
    return _SharedSite(name, tuple(transform.inverse_shape(shape)), real)


def _support(name: str, law: Any) -> np.ndarray | None:
    """The values of one element of a discrete variable, if they are finitely many."""
    while hasattr(law, "base_dist"):
        law = law.base_dist
    if not law.has_enumerate_support:
        return None
    with _failing(f"as the values of {name!r} are listed"), jax.ensure_compile_time_eval():
        listed = np.asarray(law.enumerate_support(expand=False))
    return listed.reshape(len(listed), *law.event_shape)


def _check_plates(
    plates: Collection[str], own: Collection[str], shared: Collection[str], local: Collection[str]
) -> None:
    for name in (*shared, *local):
        if name not in plates:
            raise SettingsError(f"The NumPyro model has no plate {name!r}: it has {', '.join(plates) or 'none'}.")
    if local:
        raise SettingsError(
            f"The plate {next(iter(local))!r} is declared local, and variables that belong to one client "
            "cannot be read from NumPyro yet: sum them out, or name the plate in shared."
        )
    if both := set(shared) & set(own):
        raise SettingsError(f"The plate {min(both)!r} is that of the rows, which no other client has: leave it out.")


def _other_size(plate: str, size: int, count: int) -> DataError:
    return DataError(
        f"The plate {plate!r} has the size {size} where there {'is 1 row' if count == 1 else f'are {count} rows'}: "
        "give it the number of rows, whatever that is, such as len(x)."
    )


def _check_shared(name: str, plates: set[str], of_rows: bool, shared: Collection[str], local: Collection[str]) -> None:
    if of_rows or not plates <= {*shared, *local}:
        where = f"in the plate {min(plates - {*shared, *local})!r}" if plates else "with a value for each row"
        remedy = "sum it out" if of_rows else "name the plate in shared if all clients have it"
        raise SettingsError(f"The site {name!r} {where} is neither shared nor local: {remedy}.")


def _combinations(name: str, support: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """The values that a discrete variable of one row can have, all combinations of its elements."""
    if support is None:
        raise SettingsError(
            f"The discrete site {name!r} has no finite support: sum it out by hand, such as in a mixture distribution."
        )
    elements = math.prod(shape[: len(shape) - (support.ndim - 1)])
    if elements * math.log(len(support)) > math.log(_COMBINATIONS):
        raise _too_many(f"The discrete site {name!r} has")
    places = np.indices((len(support),) * elements).reshape(elements, -1).T
    return support[places].reshape(len(places), *shape)


def _too_many(which: str) -> SettingsError:
    return SettingsError(f"{which} more than {_COMBINATIONS:,} values in a row: sum some out by hand.")


def _combined(sites: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All combinations of the values of several sites."""
    if not sites:
        return {}
    counts = [len(values) for values in sites.values()]
    if math.prod(counts) > _COMBINATIONS:
        raise _too_many("The discrete sites have together")
    places = np.indices(counts).reshape(len(counts), -1)
    return {name: values[place] for (name, values), place in zip(sites.items(), places, strict=True)}


def _check_rows(model: Callable[..., Any], rows: Rows, sites: Sites, axes: Mapping[str, int]) -> None:
    """That each row's density is its own, and that the prior does not depend on rows.

    Args:
        model: the NumPyro model.
        rows: any.
        sites: what they are.
        axes: which axis of the values of a discrete site has the rows.

    """
    own, prior = (*sites.observed, *sites.discrete), (*(site.name for site in sites.shared), *sites.given)

    @jax.jit
    def densities(rows: Rows) -> tuple[Float[Array, " n"], Float[Array, ""], Float[Array, " 2"]]:
        trace, _ = traced(model, rows, {}, {})
        shared = {site.name: trace[site.name]["value"] for site in sites.shared}
        moved = {name: jnp.moveaxis(trace[name]["value"], axis, 0) for name, axis in axes.items()}

        def one(row: PyTree, values: Mapping[str, Array]) -> Float[Array, ""]:
            fixed = {name: jnp.expand_dims(value, axes[name]) for name, value in values.items()}
            alone = {name: value[None] for name, value in row.items()}
            return total(traced(model, alone, {}, shared | fixed)[0], own)

        zeros = {name: jnp.zeros_like(values[:1]) for name, values in rows.items()}
        without = traced(model, zeros, {}, shared)[0]
        said = jnp.stack([total(each, prior) for each in (trace, without)])
        return jax.vmap(one)(rows, moved), total(trace, own), said

    with _failing("on single rows"):
        each, whole, (said, without) = (np.asarray(found, float) for found in densities(dict(rows)))
    if np.isfinite(each).all() and abs(each.sum() - whole) > _TOLERANCE * (1 + np.abs(each).sum()):
        raise SettingsError(
            f"The rows of the NumPyro model depend on each other, their log density is {whole:.6g} together and "
            f"{each.sum():.6g} one by one: let the density of a row be its own, given the shared sites."
        )
    if abs(said - without) > _TOLERANCE * (1 + abs(said)):
        raise SettingsError(
            "The priors of the NumPyro model depend on rows, which the server lacks: fix what they need."
        )
