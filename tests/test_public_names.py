"""Every module lists its public names, each of which another file uses; everything else is private by its name."""

import ast
import collections
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "partita"
OFFERED = {
    "AppliedNetwork",
    "BinaryRegression",
    "Callback",
    "LearningStep",
    "Optimiser",
    "Predictor",
    "ProductRule",
    "Role",
}
OFFERED |= {"AppliedNetwork", "RpropState", "Stored", "model_leaves", "rprop"}
"""Names that nothing here uses from elsewhere: what users' own classes inherit, return or are annotated with."""
FOLDERS = ("src", "tests", "docs", "examples", "experiments", "benchmarks")


def defined(text: str) -> set[str]:
    """The names that a module defines at its top, without private ones and variables of types."""
    names = set[str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and not re.match(r"(TypeVar|ParamSpec)\(", ast.unparse(node.value)):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def imported(text: str) -> set[str]:
    """The names that a module imports from others, anywhere in it."""
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in found for alias in node.names}


def listed(text: str) -> list[str]:
    """`__all__` of a module; empty without one."""
    lists = [
        node.value for node in ast.parse(text).body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node)
    ]
    return ast.literal_eval(lists[0]) if lists else []


@pytest.fixture(scope="module")
def words():
    paths = [
        path for folder in FOLDERS for ending in ("py", "pyi", "md") for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    return {path: set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for path in paths}


def test_modules_list_what_others_use(words):
    modules = [path for path in SOURCE.rglob("*.py") if not path.stem.startswith("__")]
    assert len(modules) > 100
    files = collections.Counter(itertools.chain.from_iterable(words.values()))
    for path in modules:
        text = path.read_text(encoding="utf-8")
        assert listed(text) == sorted(listed(text), key=_order), f"{path.name}: sort __all__"
        assert defined(text) <= set(listed(text)), f"{path.name}: __all__ is not what it defines"
        assert set(listed(text)) <= defined(text) | imported(text), f"{path.name}: __all__ has what is not there"
        unused = {name for name in listed(text) if files[name] <= (name in words[path])} - OFFERED
        assert not unused, f"{path.name}: nothing else uses {sorted(unused)}: make them private"


def test_there_are_few_names_at_the_top():
    import partita

    names = [name for name in partita.__all__ if not (SOURCE / name).exists() and not name.islower()]
    assert 35 <= len(names) <= 50


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
