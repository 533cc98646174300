"""What a run is given by its user: what is of the wrong kind is refused before anything else looks at it."""

import inspect
import math
import numbers
from typing import Any

from partita.data.shard import Partition
from partita.errors import DataError, SettingsError
from partita.families import Family
from partita.models import Model
from partita.server.method import Method

__all__ = ["check_kinds", "check_number", "check_seed"]


def check_kinds(method: Any, model: Any, prior: Any, partition: Any) -> None:
    """Raises an `InputError` unless each argument is what it is called; the message has the remedy."""
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


def check_number(what: str, value: Any) -> None:
    """Raises a `SettingsError` unless the value is a real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise SettingsError(f"The {what} must be a number, not {value!r}.")


def check_seed(seed: Any) -> None:
    """Raises a `SettingsError` unless the seed is a whole number that is not negative."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise SettingsError(f"The seed must be a whole number, 0 or more, not {seed!r}.")


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"the text {value!r}" if isinstance(value, str) else f"of type {type(value).__name__}"
