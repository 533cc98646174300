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

__all__ = ["Rows", "SharedSite", "Sites", "Trace", "read_sites", "total", "traced"]

Rows = Mapping[str, Shaped[Array | np.ndarray, "n ..."]]
"""What the model is called with, by the names of its arguments, with rows first."""
Trace = Mapping[str, dict[str, Any]]
"""The sites that a model went through, by name, as NumPyro has them."""
_COMBINATIONS = 4096
"""The largest number of values that a row's discrete variables can have together."""
_TOLERANCE = 1e-3
"""How far the rows' densities, one by one, may be from those of all, relative to them: single precision is enough."""


class SharedSite(NamedTuple):
    """Variables that all rows share."""

    name: str
    shape: tuple[int, ...]
    """Without constraints."""

    @property
    def size(self) -> int:
        """How many numbers they are."""
        return math.prod(self.shape)


class Sites(eqx.Module):
    """What a model's sites are."""

    shared: tuple[SharedSite, ...] = eqx.field(static=True)
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
    """Anything that a user's model raises is told in one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        why = (str(error) or repr(error)).splitlines()[0]
        raise SettingsError(f"The NumPyro model fails {what}: {why:.200}") from error


def read_sites(model: Callable[..., Any], rows: Rows, shared: Collection[str], local: Collection[str]) -> Sites:
    """What the sites are; raises an `InputError` where they do not say what belongs to whom."""
    count = len(next(iter(rows.values())))
    if count == 1:
        rows, count = {name: np.concatenate([values, values]) for name, values in rows.items()}, 2
    trace = _gone_through(model, rows, count)
    single = _gone_through(model, {name: values[:1] for name, values in rows.items()}, 1)
    if set(trace) != set(single):
        raise SettingsError("The NumPyro model has other sites with fewer rows: give it the same for any number.")
    own = _plates_of_rows(trace, single, count)
    _check_plates(trace, own, shared, local)
    samples = {name: site for name, site in trace.items() if site["type"] == "sample"}
    discrete = dict[str, np.ndarray]()
    found, given, observed = list[SharedSite](), list[str](), list[str]()
    for name, site in samples.items():
        plates = {frame.name for frame in site["cond_indep_stack"]}
        of_rows = bool(plates & own) or np.shape(site["value"]) != np.shape(single[name]["value"])
        if site["is_observed"]:
            if plates and not plates & own:
                fixed = trace[site["cond_indep_stack"][0].name]
                raise _other_size(fixed, 1 if _size(fixed) == count else count)
            (observed if of_rows else given).append(name)
        elif site["fn"].support.is_discrete:
            if not plates & own:
                raise SettingsError(
                    f"The discrete site {name!r} is in no plate of the rows: only a row's own can be summed out."
                )
            discrete[name] = _support(name, site, single[name])
        else:
            _check_shared(name, plates, of_rows, shared, local)
            found.append(SharedSite(name, _free_shape(site)))
    for name, site in trace.items():
        if site["type"] == "param":
            raise SettingsError(f"The parameter {name!r} has no prior: make it a numpyro.sample.")
    if not observed:
        raise SettingsError("The NumPyro model observes nothing of these rows: give the site of their response obs=….")
    if not found:
        raise SettingsError("The NumPyro model has no variable that rows share: there is nothing to infer.")
    sites = Sites(tuple(found), tuple(given), tuple(observed), _combined(discrete))
    _check_rows(model, rows, sites, trace, own)
    return sites


def _gone_through(model: Callable[..., Any], rows: Rows, count: int) -> Trace:
    """The model's trace on so many rows; an error tells of a plate with another size, where there is one."""
    plates = list[dict[str, Any]]()

    def seen(**rows: Any) -> None:
        from numpyro import handlers

        with handlers.trace() as trace:
            try:
                model(**rows)
            finally:
                plates.extend(site for site in trace.values() if site["type"] == "plate")

    with _failing("on a single row" if count == 1 else f"on {count} rows"):
        try:
            return traced(seen, rows, {}, {})[0]
        except (TypeError, ValueError):
            for plate in plates:
                if _size(plate) != count:
                    raise _other_size(plate, count) from None
            raise


def _plates_of_rows(trace: Trace, single: Trace, count: int) -> set[str]:
    """The plates that are as long as there are rows, whatever their number."""
    sizes = {name: (_size(site), _size(single[name])) for name, site in trace.items() if site["type"] == "plate"}
    return {name for name, size in sizes.items() if size == (count, 1)}


def _size(plate: dict[str, Any]) -> int:
    return int(plate["args"][0])


def _check_plates(trace: Trace, own: Collection[str], shared: Collection[str], local: Collection[str]) -> None:
    plates = [name for name, site in trace.items() if site["type"] == "plate"]
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


def _other_size(plate: dict[str, Any], count: int) -> DataError:
    return DataError(
        f"The plate {plate['name']!r} has the size {_size(plate)} where there are {count} rows: "
        "give it the number of rows, whatever that is, such as len(x)."
    )


def _check_shared(name: str, plates: set[str], of_rows: bool, shared: Collection[str], local: Collection[str]) -> None:
    if of_rows or not plates <= {*shared, *local}:
        where = f"in the plate {min(plates - {*shared, *local})!r}" if plates else "with a value for each row"
        remedy = "sum it out" if of_rows else "name the plate in shared if all clients have it"
        raise SettingsError(f"The site {name!r} {where} is neither shared nor local: {remedy}.")


def _free_shape(site: dict[str, Any]) -> tuple[int, ...]:
    from numpyro.distributions import biject_to

    return tuple(biject_to(site["fn"].support).inverse_shape(np.shape(site["value"])))


def _support(name: str, site: dict[str, Any], single: dict[str, Any]) -> np.ndarray:
    """The values that a discrete variable of one row can have, all combinations of its elements."""
    if not site["fn"].has_enumerate_support:
        raise SettingsError(
            f"The discrete site {name!r} has no finite support: sum it out by hand, such as in a mixture distribution."
        )
    with _failing(f"as the values of {name!r} are listed"):
        listed = np.asarray(site["fn"].enumerate_support(expand=False))
    events = site["fn"].event_shape
    values, batch = listed.reshape(len(listed), *events), tuple(single["fn"].batch_shape)
    elements = math.prod(batch)
    if len(values) ** elements > _COMBINATIONS:
        raise SettingsError(
            f"The discrete site {name!r} has {len(values)} to the power of {elements} values in a row, "
            f"more than {_COMBINATIONS:,}: sum it out by hand."
        )
    places = np.indices((len(values),) * elements).reshape(elements, -1).T
    return values[places].reshape(len(places), *batch, *events)


def _combined(sites: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All combinations of the values of several sites."""
    if not sites:
        return {}
    counts = [len(values) for values in sites.values()]
    if math.prod(counts) > _COMBINATIONS:
        raise SettingsError(
            f"A row's discrete sites have {math.prod(counts):,} values together, more than {_COMBINATIONS:,}: "
            "sum some out by hand."
        )
    places = np.indices(counts).reshape(len(counts), -1)
    return {name: values[place] for (name, values), place in zip(sites.items(), places, strict=True)}


def _check_rows(model: Callable[..., Any], rows: Rows, sites: Sites, trace: Trace, own: Collection[str]) -> None:
    """That each row's density is its own, and that the prior does not depend on rows."""
    names = (*sites.observed, *sites.discrete)
    shared = {site.name: trace[site.name]["value"] for site in sites.shared}
    discrete = {name: trace[name]["value"] for name in sites.discrete}
    axes = {name: _axis(trace[name], own) for name in discrete}

    def one(row: PyTree, values: Mapping[str, Array]) -> Float[Array, ""]:
        fixed = {name: jnp.expand_dims(value, axes[name]) for name, value in values.items()}
        return total(traced(model, {name: value[None] for name, value in row.items()}, {}, shared | fixed)[0], names)

    moved = {name: jnp.moveaxis(value, axes[name], 0) for name, value in discrete.items()}
    with _failing("on single rows"):
        each = np.asarray(jax.vmap(one)({name: jnp.asarray(values) for name, values in rows.items()}, moved))
        whole = float(total(trace, names))
        none = {name: np.zeros((1, *np.shape(values)[1:]), np.asarray(values).dtype) for name, values in rows.items()}
        prior = (*shared, *sites.given)
        said, without = (total(each, prior) for each in (trace, traced(model, none, {}, shared)[0]))
    if np.isfinite(each).all() and abs(each.sum() - whole) > _TOLERANCE * (1 + np.abs(each).sum()):
        raise SettingsError(
            f"The rows of the NumPyro model depend on each other, their log density is {whole:.6g} together and "
            f"{each.sum():.6g} one by one: let the density of a row be its own, given the shared sites."
        )
    if abs(float(said) - float(without)) > _TOLERANCE * (1 + abs(float(said))):
        raise SettingsError(
            "The priors of the NumPyro model depend on rows, and the server has none: fix what they need."
        )


def _axis(site: dict[str, Any], own: Collection[str]) -> int:
    """Where the rows are among the axes of a site's values."""
    frame = next(frame for frame in site["cond_indep_stack"] if frame.name in own)
    return len(site["fn"].batch_shape) + int(frame.dim)
