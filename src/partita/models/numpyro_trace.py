"""NumPyro models' traces: their sites at given values, and log densities as NumPyro weights them."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from partita.errors import InputError, MissingExtraError, SettingsError

__all__ = ["Rows", "Trace", "failing", "scaled", "total", "traced"]

Rows = Mapping[str, Shaped[Array | np.ndarray, "n ..."]]
"""What the model is called with, by the names of its arguments, with rows first."""
Trace = Mapping[str, dict[str, Any]]
"""The sites that a model went through, by name, as NumPyro has them."""
_ONE_AT_A_TIME = threading.RLock()
"""NumPyro has one stack of handlers, into which models would run that several threads trace at once."""
_STRETCH = "_{}_log_det"
"""What log|dθ/du| of a site is called, as NumPyro does."""


def traced(
    model: Callable[..., Any],
    rows: Rows,
    free: Mapping[str, Array],
    fixed: Mapping[str, Array],
    key: Key[Array, ""] | None = None,
) -> Trace:
    """The model's trace at values without constraints, and fixed values of other sites, and of plates' members.

    Sites of neither are drawn from their distributions, with the key or the same one each time.
    """
    try:
        import numpyro
        from numpyro import handlers
        from numpyro.distributions import biject_to
        from numpyro.distributions.transforms import IdentityTransform
        from numpyro.distributions.util import sum_rightmost
    except ImportError:
        raise MissingExtraError("numpyro", "numpyro") from None

    def value(site: dict[str, Any]) -> Array | None:
        name = site["name"]
        if site["type"] != "sample" or name not in free:
            return fixed.get(name)
        transform = biject_to(site["fn"].support)
        found: Array = transform(free[name])
        if not isinstance(transform, IdentityTransform):
            stretch = transform.log_abs_det_jacobian(free[name], found)
            beyond = jnp.ndim(stretch) - jnp.ndim(found) + len(site["fn"].event_shape)
            # in the model's own handlers, such as of scale
            numpyro.factor(_STRETCH.format(name), sum_rightmost(stretch, beyond))
        return found

    program = handlers.seed(
        handlers.substitute(model, substitute_fn=value), rng_seed=jax.random.key(0) if key is None else key
    )
    with _ONE_AT_A_TIME:
        trace = handlers.trace(program).get_trace(**rows)
    for name, site in trace.items():
        if site["type"] == "plate" and name in fixed:
            _counted_once(trace, name, len(site["value"]) / int(site["args"][0]))
    return trace


def _counted_once(trace: Trace, plate: str, share: float) -> None:
    """Takes back that NumPyro weights the members of a plate as if they stood for all of them."""
    for site in trace.values():
        if site["type"] == "sample" and plate in (frame.name for frame in site["cond_indep_stack"]):
            site["scale"] = share * (1.0 if site["scale"] is None else site["scale"])


def total(trace: Trace, names: Collection[str]) -> Float[Array, ""]:
    """The sum of these sites' log densities, of values without constraints where those were given."""
    found = jnp.zeros(())
    for name in (*names, *(stretch for name in names if (stretch := _STRETCH.format(name)) in trace)):
        found += jnp.sum(scaled(trace[name]))
    return found


def scaled(site: dict[str, Any]) -> Array:
    """The log densities of a site's values, with their weights."""
    density: Array = site["fn"].log_prob(site["value"])
    return density if site["scale"] is None else site["scale"] * density


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
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
