"""The project's pages: what is in them besides prose."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("experiments/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
    ]
)

_FENCED = re.compile(r"^(?P<mark><!--[^\n]*-->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->\n")


class Block(NamedTuple):
    """A fenced piece of a page, and the line on which its text begins."""

    line: int
    language: str
    text: str
    runs: bool


def title(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            text[: found.start("text")].count("\n") + 1,
            found["language"],
            found["text"],
            not _NOT_RUN.fullmatch(found["mark"] or ""),
        )
        for found in _FENCED.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCED.sub("", page.read_text())
