"""References for the paper's equations are plain NumPy: they import nothing from the project."""

import ast
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
REFERENCES = ("reference", "scaling")


def imported(text):
    """The modules that a file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(text)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def project(modules):
    """Those of the project."""
    return {name for name in modules if name.split(".")[0] in ("partita", "partita_experiments")}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_imports_nothing_from_the_project(name):
    modules = imported((SUPPORT / f"{name}.py").read_text())
    assert project(modules) == set()
    assert {other.split(".")[1] for other in modules if other.startswith("support.")} <= set(REFERENCES)


def test_imports_from_the_project_are_found():
    assert project(imported("def f():\n    from partita.families import Family\nimport partita as pt")) == {
        "partita",
        "partita.families",
    }
