"""Help: quick, since it loads nothing that computes, and complete."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.io import names

HEAVY = ("jax", "equinox", "numpy", "scipy", "matplotlib", "flwr", "rich")


def commands(command=None, path=()):
    """Every command and group, with the words that call it."""
    command = command or typer.main.get_command(app)
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands())

ASK_ALL = f"""
import sys
from typer.testing import CliRunner
from partita.cli import app
for words in {list(COMMANDS)}:
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0 and "Usage" in done.output, words
    print(*words, sorted(set({HEAVY}) & set(sys.modules)))
"""


def test_help_imports_no_heavy_modules():
    done = subprocess.run([sys.executable, "-c", ASK_ALL], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(COMMANDS)
    assert [line for line in done.stdout.splitlines() if not line.endswith("[]")] == []


@pytest.mark.parametrize("words", [words for words, command in COMMANDS.items() if command.callback], ids=" ".join)
def test_help_shows_a_text_for_every_parameter(words):
    """What is shown, not what was declared: typer before 0.26 loses the help of arguments with click 8.5."""
    shown = " ".join(CliRunner().invoke(app, [*words, "--help"], terminal_width=200).output.split())
    for name, parameter in inspect.signature(COMMANDS[words].callback).parameters.items():
        text = parameter.annotation.__metadata__[0].help
        assert text, name
        assert text in shown


def test_the_kinds_that_help_lists_are_those_there_are():
    """They are listed once, where nothing that computes is loaded; the registry of methods has the same."""
    parameters = inspect.signature(COMMANDS["federation", "init"].callback).parameters
    assert get_args(parameters["schedule"].annotation)[0] == names.Turns
    assert set(get_args(names.Turns)) <= set(pt.methods.NAMED)


def test_the_packages_names_match_its_type_stub():
    """What type checkers see, and what is imported on demand, are the same names."""
    seen = [node for node in ast.parse(Path(pt.__file__ + "i").read_text()).body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.asname for node in seen for alias in node.names) == pt.__all__
    assert set(pt.__all__) <= set(dir(pt))
    for node in seen:
        for alias in node.names:
            module = __import__(node.module, fromlist=[alias.name])
            assert getattr(pt, alias.asname) is getattr(module, alias.name)


def test_submodules_are_loaded_on_attribute_access():
    program = (
        "import partita as pt; pt.families.Gamma, pt.partitioners.by_column; from partita import *; run, methods.fit"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="'partita' has no attribute 'LogisticRegresion'"):
        _ = pt.LogisticRegresion
    with pytest.raises(ImportError, match="LogisticRegresion"):
        from partita import LogisticRegresion  # noqa: F401
