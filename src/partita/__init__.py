"""Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows."""

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {alias.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
"""The module of every public name, as `__init__.pyi` has it for type checkers."""
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Imports a name or a module when it is first asked for (PEP 562), so that `partita --help` does without JAX."""
    home = _HOMES.get(name, "partita")
    if home != "partita":
        globals()[name] = value = getattr(__import__(home, fromlist=[name]), name)
        return value
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"partita.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"partita.{name}":
                raise
    raise AttributeError(f"module 'partita' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
