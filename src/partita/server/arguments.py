"""What a run is given by its user: what is of the wrong kind is refused before anything else looks at it."""

import inspect
import math
from numbers import Integral, Real
from typing import Any

from partita.data.shard import Partition
from partita.errors import DataError, SettingsError
from partita.families import Family
from partita.models import Model
from partita.server.method import Method

__all__ = ["check_arguments"]


def check_arguments(method: Any, model: Any, prior: Any, partition: Any, seed: Any, **numbers: Any) -> None:
    """Raises an `InputError` unless each argument is what it is called; `numbers` that are None were not given."""
    _check_kinds(method, model, prior, partition)
    _check_seed(seed)
    for what, value in numbers.items():
        if value is not None:
            _check_number(what, value)


def _check_kinds(method: Any, model: Any, prior: Any, partition: Any) -> None:
    if not isinstance(method, Method):
        how = (
            f"pass partita.methods.named({method!r})" if isinstance(method, str) else "call it, or use partita.methods"
        )
        raise SettingsError(f"The method must be a Method, not {_kind(method)}: {how}.")
    if not isinstance(model, Model):
        how = f"pass {model.__name__}()" if inspect.isclass(model) else "use one of partita.models"
        raise SettingsError(f"The model must be a Model, not {_kind(model)}: {how}.")
    if not isinstance(prior, Family):
        how = "such as partita.FullGaussian.standard_normal(columns)"
        raise SettingsError(f"The prior must be a member of a family, not {_kind(prior)}: give one, {how}.")
    if partition is not None and not isinstance(partition, Partition):
        how = "make one with partita.federate([…]) or partita.split(…)"
        raise DataError(f"Clients' rows must be a Partition, not {_kind(partition)}: {how}.")


def _check_number(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise SettingsError(f"The {what} must be a number, not {value!r}.")


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise SettingsError(f"The seed must be a whole number, 0 or more, not {seed!r}.")


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"the text {value!r}" if isinstance(value, str) else f"of type {type(value).__name__}"
