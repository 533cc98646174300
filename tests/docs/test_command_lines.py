"""Command lines of `partita` in the pages: their commands, arguments and options exist."""

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from docs.pages import PAGES, blocks, prose, title
from partita.cli import app

COMMAND = typer.main.get_command(app)
_SPAN = re.compile(r"`(partita [^`]*)`")
_INDENTED = re.compile(r"^ {4}(partita .*)$", re.MULTILINE)
_CALL = re.compile(r"""(?:^|[\s/(])partita (?!=)((?:'[^']*'|"[^"]*"|[^;&)'"])*)""")
"""A call of `partita`, up to where the shell's own signs end it; within quotes they do not."""


def lines(page: Path) -> list[str]:
    """What stands after `partita` in shell blocks, indented blocks and spans of code; a synopsis loses its brackets."""
    shell = [block.text.replace("\\\n", "").split("\n") for block in blocks(page) if block.language == "sh"]
    found = [call[1] for block in shell for line in block if (call := _CALL.search(line.split(" #")[0]))]
    spans = [" ".join(span.split()).removeprefix("partita ") for span in _SPAN.findall(prose(page))]
    indented = [line.removeprefix("partita ") for line in _INDENTED.findall(prose(page))]
    return found + [each for line in (*spans, *indented) for each in alternatives(re.sub(r"[\[\]]", "", line))]


def alternatives(line: str) -> list[str]:
    """The lines that one with bars between its last words stands for."""
    first, *others = line.split(" | ")
    return [first, *(" ".join([*first.split()[:-1], other]) for other in others)]


def parse(line: str) -> None:
    """Walks to the command that a line names; raises click's error where something in it does not exist."""
    words = shlex.split(line)
    command = COMMAND
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        context = click.Context(command)
        if (inner := command.get_command(context, name)) is None:
            raise click.UsageError(f"No command {name!r}")
        command = inner
    options = {text: option for option in command.params for text in (*option.opts, *option.secondary_opts)}
    place = 0
    arguments = [option for option in command.params if isinstance(option, click.Argument)]
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            place += 1
            if place > len(arguments) and not (arguments and arguments[-1].nargs == -1):
                raise click.UsageError(f"One argument too many: {word!r}")
        elif word in ("-h", "--help"):
            return
        elif word not in options:
            raise click.NoSuchOption(word)
        elif not options[word].is_flag and words and not words[0].startswith("-"):
            words.pop(0)


@pytest.mark.parametrize("page", [page for page in PAGES if lines(page)], ids=title)
def test_command_lines_of_a_page_parse(page):
    for line in lines(page):
        parse(line)


@pytest.mark.parametrize("line", ["dance", "demo --colour red", "federation sing", "demo extra", "status study more"])
def test_missing_references_are_found(line):
    with pytest.raises(click.UsageError):
        parse(line)


def test_command_lines_are_found_anywhere_on_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`partita demo --json` and `partita federation leave\nstudy west`\n\n    partita demo [--split A|B]\n\n"
        "`partita experiment uci | heart`\n"
        "```sh\n.venv/bin/partita server study  # until it ends\npartita client \\\n  a --name a &\n"
        "pip install partita\n(cd a && partita fit 'y ~ bs(x, df=4)' a.csv); exit\n```\n"
    )
    assert lines(page) == [
        "server study ",
        "client   a --name a ",
        "fit 'y ~ bs(x, df=4)' a.csv",
        "demo --json",
        "federation leave study west",
        "experiment uci",
        "experiment heart",
        "demo --split A|B",
    ]
