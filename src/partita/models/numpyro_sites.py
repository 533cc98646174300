"""The sites of a NumPyro model: which belong to all rows, which to a single row, and which to neither."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from partita.errors import DataError, InputError, SettingsError
from partita.models.integral import MOST_VARIABLES
from partita.models.numpyro_members import numbered
from partita.models.numpyro_trace import Rows, failing, traced

__all__ = ["Local", "Sites", "Variables", "read_sites"]

_COMBINATIONS = 4096
"""The largest number of values that a row's discrete variables can have together."""


class Variables(NamedTuple):
    """A site of continuous variables."""

    name: str
    shape: tuple[int, ...]
    """Without constraints; of a plate whose members have each their own, with one member."""
    real: bool
    """Whether they are so already."""

    @property
    def size(self) -> int:
        """How many numbers they are."""
        return math.prod(self.shape)


class Local(NamedTuple):
    """A plate whose variables belong to one client: each member of it has its own."""

    plate: str
    column: str | None
    """Which argument says to which member a row belongs; None if every row is a member."""
    sites: tuple[Variables, ...]
    axes: tuple[int, ...]
    """Which axis of a site's values has the members."""

    @property
    def size(self) -> int:
        """How many numbers a member has."""
        return sum(site.size for site in self.sites)


class Sites(eqx.Module):
    """What a model's sites are."""

    shared: tuple[Variables, ...] = eqx.field(static=True)
    """Of θ, in its order."""
    given: tuple[str, ...] = eqx.field(static=True)
    """Observed sites and factors that do not depend on rows; with the shared ones they are the prior."""
    observed: tuple[str, ...] = eqx.field(static=True)
    """Observed sites of rows: the likelihood."""
    discrete: Mapping[str, Int[np.ndarray, "c ..."]]
    """Of a row's discrete variables the values, all combinations along the first axis."""
    axes: tuple[tuple[str, int], ...] = eqx.field(static=True)
    """Which axis of the values of an observed or discrete site has the rows."""
    local: Local | None = eqx.field(static=True)


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
    variables: Variables | None
    """None if it is discrete."""
    support: np.ndarray | None
    """The values of one element, if it is discrete and they are finitely many."""


def read_sites(
    model: Callable[..., Any], rows: Rows, shared: Collection[str], local: Mapping[str, str | None]
) -> Sites:
    """What the sites are; raises an `InputError` where they do not say what belongs to whom.

    Args:
        model: the NumPyro model.
        rows: by the names of its arguments.
        shared: plates whose variables all clients share.
        local: the plate whose variables belong to one client, with the argument that says which row is whose; None if
            every row has its own.

    """
    count = len(next(iter(rows.values())))
    if count == 1:
        rows, count = {name: np.concatenate([values, values]) for name, values in rows.items()}, 2
    plate, column = next(iter(local.items()), (None, None))
    resized = dict[str, int]()
    if plate is not None and column is not None:
        rows, members = numbered(rows, column)
        resized[plate] = int(members.max()) + 1
    seen = _looked_at(model, rows, count, resized)
    single = _looked_at(
        model,
        {name: values[:1] * 0 if name == column else values[:1] for name, values in rows.items()},
        1,
        dict.fromkeys(resized, 1),
    )
    if set(seen) != set(single):
        raise SettingsError("The NumPyro model has other sites with fewer rows: give it the same for any number.")
    sizes = {name: (site.size, single[name].size) for name, site in seen.items() if site.kind == "plate"}
    own = {name for name, size in sizes.items() if size == (count, 1)} - resized.keys()
    _check_plates(sizes, own, shared, local)
    axes = {name: axis for name, site in seen.items() if (axis := _axis(site, single[name], own)) is not None}
    discrete = dict[str, np.ndarray]()
    found, given, observed, mine = list[Variables](), list[str](), list[str](), list[tuple[Variables, int]]()
    for name, site in seen.items():
        if site.kind == "param":
            raise SettingsError(f"The parameter {name!r} has no prior: make it a numpyro.sample.")
        if site.kind != "sample":
            continue
        plates = {plate for plate, _ in site.plates}
        of_rows = bool(plates & own) or site.shape != single[name].shape
        if site.observed:
            if plates & resized.keys():
                raise SettingsError(
                    f"The observed site {name!r} is in the plate {plate!r}, whose members rows name by {column!r}: "
                    "observe it in a plate of the rows."
                )
            if plates and not plates & own and (of_rows or not plates <= set(shared)):
                fixed = site.plates[0][0]
                raise _other_size(fixed, sizes[fixed][0], 1 if sizes[fixed][0] == count else count)
            (observed if of_rows else given).append(name)
        elif site.variables is None:
            if not plates & own:
                raise SettingsError(
                    f"The discrete site {name!r} is in no plate of the rows: only a row's own can be summed out."
                )
            discrete[name] = _combinations(name, site.support, single[name].shape)
        elif plate in plates and plates - {plate} <= set(shared):
            of_one, axis = single[name].variables, next(axis for each, axis in site.plates if each == plate)
            assert of_one is not None  # nosec B101: it is continuous with any number of rows
            mine.append((of_one, axis))
        else:
            _check_shared(name, plates, of_rows, shared)
            found.append(site.variables)
    if not observed:
        raise SettingsError("The NumPyro model observes nothing of these rows: give the site of their response obs=….")
    if not found:
        raise SettingsError("The NumPyro model has no variable that rows share: there is nothing to infer.")
    of_members = None if plate is None else _local(plate, column, mine)
    by_rows = tuple((name, axes.get(name, 0)) for name in (*observed, *discrete))
    return Sites(tuple(found), tuple(given), tuple(observed), _combined(discrete), by_rows, of_members)


def _axis(site: "_Seen", single: "_Seen", own: Collection[str]) -> int | None:
    """Which axis of a site's values has the rows, if one has."""
    for plate, axis in site.plates:
        if plate in own:
            return axis
    differ = [axis for axis, sizes in enumerate(zip(site.shape, single.shape, strict=False)) if sizes[0] != sizes[1]]
    return differ[0] if differ else None


def _local(plate: str, column: str | None, sites: Sequence[tuple[Variables, int]]) -> Local:
    """What belongs to each member of a plate."""
    found = Local(plate, column, tuple(site for site, _ in sites), tuple(axis for _, axis in sites))
    if not found.sites:
        raise SettingsError(f"The plate {plate!r} has no continuous variable: leave it out of local.")
    if found.size > MOST_VARIABLES:
        raise SettingsError(
            f"Each member of the plate {plate!r} has {found.size} variables of its own, where at most {MOST_VARIABLES} "
            "can be integrated out: sum some out by hand, or share them."
        )
    return found


def _looked_at(model: Callable[..., Any], rows: Rows, count: int, resized: Mapping[str, int]) -> Mapping[str, _Seen]:
    """The sites on so many rows; nothing is computed. An error tells of a plate with another size, if there is one.

    Plates that are `resized` have so many members, whatever the model says.
    """
    found, plates = dict[str, _Seen](), list[dict[str, Any]]()

    def noting(**rows: Any) -> None:
        from numpyro import handlers

        with handlers.trace() as trace:
            try:
                model(**rows)
            finally:
                plates.extend(site for site in trace.values() if site["type"] == "plate")

    def look(rows: Rows) -> None:
        trace = traced(noting, rows, {}, {plate: jnp.arange(size) for plate, size in resized.items()})
        found.update((name, _seen(name, site)) for name, site in trace.items())

    with failing("on a single row" if count == 1 else f"on {count} rows"):
        try:
            jax.eval_shape(look, rows)
        except (TypeError, ValueError) as error:
            other = [plate for plate in plates if int(plate["args"][0]) != count and plate["name"] not in resized]
            if isinstance(error, InputError) or not other:
                raise
            raise _other_size(other[0]["name"], int(other[0]["args"][0]), count) from None
    return found


def _seen(name: str, site: dict[str, Any]) -> _Seen:
    if site["type"] != "sample":
        size = len(site["value"]) if site["type"] == "plate" else 0
        return _Seen(site["type"], size, (), (), False, None, None)
    law, shape = site["fn"], np.shape(site["value"])
    batch = len(shape) - len(law.event_shape)
    plates = tuple((frame.name, batch + int(frame.dim)) for frame in site["cond_indep_stack"])
    if site["is_observed"]:
        return _Seen("sample", 0, shape, plates, True, None, None)
    if law.support.is_discrete:
        return _Seen("sample", 0, shape, plates, False, None, _support(name, law))
    return _Seen("sample", 0, shape, plates, False, _variables(name, law, shape), None)


def _variables(name: str, law: Any, shape: tuple[int, ...]) -> Variables:
    from numpyro.distributions import biject_to, transforms

    transform = biject_to(law.support)
    while isinstance(transform, transforms.IndependentTransform):
        transform = transform.base_transform
    real = isinstance(transform, transforms.IdentityTransform)
    return Variables(name, tuple(transform.inverse_shape(shape)), real)


def _support(name: str, law: Any) -> np.ndarray | None:
    """The values of one element of a discrete variable, if they are finitely many."""
    while hasattr(law, "base_dist"):
        law = law.base_dist
    if not law.has_enumerate_support:
        return None
    with failing(f"as the values of {name!r} are listed"), jax.ensure_compile_time_eval():
        listed = np.asarray(law.enumerate_support(expand=False))
    return listed.reshape(len(listed), *law.event_shape)


def _check_plates(
    plates: Collection[str], own: Collection[str], shared: Collection[str], local: Mapping[str, str | None]
) -> None:
    for name in (*shared, *local):
        if name not in plates:
            raise SettingsError(f"The NumPyro model has no plate {name!r}: it has {', '.join(plates) or 'none'}.")
    if both := set(shared) & set(local):
        raise SettingsError(f"The plate {min(both)!r} is declared shared and local: name it in one of them.")
    if both := set(shared) & set(own):
        raise SettingsError(f"The plate {min(both)!r} is that of the rows, which no other client has: leave it out.")
    if fixed := [name for name, column in local.items() if column is None and name not in own]:
        raise SettingsError(
            f"The local plate {fixed[0]!r} is not of the size of the rows: name the argument that says which row is "
            f"whose, local={{{fixed[0]!r}: '…'}}."
        )


def _other_size(plate: str, size: int, count: int) -> DataError:
    return DataError(
        f"The plate {plate!r} has the size {size} where there {'is 1 row' if count == 1 else f'are {count} rows'}: "
        "give it the number of rows, whatever that is, such as len(x)."
    )


def _check_shared(name: str, plates: set[str], of_rows: bool, shared: Collection[str]) -> None:
    if of_rows or not plates <= set(shared):
        where = f"in the plate {min(plates - set(shared))!r}" if plates else "with a value for each row"
        remedy = "name the plate in local" if of_rows else "name the plate in shared if all clients have it"
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
