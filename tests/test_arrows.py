"""Modules import downwards only, in the order that `docs/architecture.md` states, and never in a circle."""

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
EXCEPT = {("partita.cli", "partita"): "prints the version, which is stated in one place"}
"""Imports against the order, each with its reason."""

Graph = Mapping[str, set[str]]


def levels(page: str) -> dict[str, int]:
    """The level of each room, from the rows of the page's table; rooms in one row have one level."""
    section = page.split("\n## Arrows of import\n")[1].split("\n## ")[0]
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in section.split("\n") if row.startswith("| `")]
    return {room: level for level, rooms in enumerate(rows) for room in rooms}


def modules(source: Path) -> dict[str, Path]:
    """The files of the package by module name."""
    found = {}
    for path in source.glob("partita/**/*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(text: str, known: Iterable[str]) -> set[str]:
    """Every module that a text imports, in functions and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in full}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def room(module: str) -> str:
    """The room of a module; the package itself stands above all rooms."""
    return (module.split(".") + ["partita"])[1]


def upwards(graph: Graph, order: Mapping[str, int]) -> list[str]:
    """Imports of a higher room, or of another room of the same level."""
    return sorted(
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if room(module) != room(other) and order[room(other)] >= order[room(module)] and (module, other) not in EXCEPT
    )


def circle(graph: Graph) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        for other in sorted(graph[module]):
            if found := visit(other, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := visit(module, []))), [])


ORDER = levels((ROOT / "docs" / "architecture.md").read_text())


@functools.cache
def everything() -> Graph:
    """What each module of the package imports."""
    known = modules(SOURCE)
    return {module: imported(path.read_text(), known) for module, path in known.items()}


def graph() -> Graph:
    """What each module imports of the package, without the exceptions."""
    return {
        module: {other for other in others if other in everything() and (module, other) not in EXCEPT}
        for module, others in everything().items()
    }


def test_the_architecture_page_lists_every_package():
    assert set(ORDER) == {room(module) for module in everything()}


def test_no_package_imports_from_a_higher_layer():
    assert upwards(graph(), ORDER) == []


def test_no_modules_import_each_other():
    assert circle(graph()) == []


def test_the_library_knows_nothing_of_the_experiments():
    assert [
        module for module, others in everything().items() if any("partita_experiments" in name for name in others)
    ] == []


def test_every_exception_is_still_needed():
    assert {(module, other) for module, other in EXCEPT if other not in everything()[module]} == set()


def test_imports_in_functions_and_for_type_checkers_are_found():
    known = {"partita.a", "partita.b", "partita.b.c", "partita.d"}
    text = "if TYPE_CHECKING:\n    from partita.b import c\ndef f():\n    import partita.d\nfrom partita.a import g\n"
    assert imported(text, known) == {"partita.a", "partita.b.c", "partita.d"}


def test_imports_that_violate_the_layers_are_found():
    order = levels(
        "\n## Arrows of import\n\n| rooms |\n|---|\n| `low` | x |\n| `left`, `right` | x |\n\n## More\n| `no` |\n"
    )
    assert order == {"low": 0, "left": 1, "right": 1}
    some = {
        "partita.low.a": {"partita.left.b"},
        "partita.left.b": {"partita.low.a", "partita.right"},
        "partita.right": {"partita.low.a"},
    }
    assert upwards(some, order) == ["partita.left.b imports partita.right", "partita.low.a imports partita.left.b"]
    assert circle(some) == ["partita.left.b", "partita.low.a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
