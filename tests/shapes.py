"""Checks of types and shapes at run time: `make shapes` runs tests with them."""

import contextlib
from typing import Any, Self

import jaxtyping
import pytest
from beartype import BeartypeConf, BeartypeStrategy, beartype

CONF = BeartypeConf(strategy=BeartypeStrategy.O1, is_pep484_tower=True)
"""An int may stand for a float, as type checkers allow."""


def checked(function):
    """The function, checked by beartype, which takes `Self` and protocols only where it decorates classes."""
    hints = getattr(function, "__annotations__", {})
    function.__annotations__ = {name: Any if _beyond(hint) else hint for name, hint in hints.items()}
    return beartype(function, conf=CONF)


def _beyond(hint):
    return any(part is Self or getattr(part, "_is_protocol", False) for part in (hint, *getattr(hint, "__args__", ())))


@contextlib.contextmanager
def _raises(expected, strictly=pytest.raises, **settings):
    """`pytest.raises`, in which nothing is checked if the library itself is to say that input is wrong."""
    from partita import InputError

    wrong = isinstance(expected, type) and issubclass(expected, InputError | AssertionError)
    with strictly(expected, **settings) as caught:
        jaxtyping.config.update("jaxtyping_disable", wrong)
        try:
            yield caught
        finally:
            jaxtyping.config.update("jaxtyping_disable", False)


pytest.raises = _raises
