"""Solvers by name, for configuration files."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import optax

from partita.inputs import check_choice, check_kind
from partita.io.settings import call
from partita.local.solvers.base import Solver
from partita.local.solvers.fixed_point import Conjugate, FixedPoint
from partita.local.solvers.gradient import LBFGS, Gradient
from partita.local.solvers.newton import Newton
from partita.local.solvers.power_ep import PowerEP

__all__ = ["KINDS", "named"]

KINDS: Mapping[str, Callable[..., Solver]] = {
    "newton": Newton,
    "lbfgs": LBFGS,
    "adam": functools.partial(Gradient, optax.adam),
    "conjugate": Conjugate,
    "fixed_point": FixedPoint,
    "power_ep": PowerEP,
}


def named(kind: str, settings: Mapping[str, Any], what: str = "solver") -> Solver:
    """The solver of this kind with these settings."""
    check_choice("kind of solver", kind, KINDS)
    check_kind("settings of a solver", settings, Mapping, "give them by name")
    return call(KINDS[kind], settings, what)
