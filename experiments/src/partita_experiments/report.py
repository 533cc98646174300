"""A report as data, and its two forms: Markdown for repositories, HTML for a browser."""

import html
from collections.abc import Sequence
from typing import NamedTuple


class Heading(NamedTuple):
    """A section's title."""

    text: str


class Subheading(NamedTuple):
    """The title of a part of a section."""

    text: str


class Text(NamedTuple):
    """A paragraph."""

    text: str


class ReportTable(NamedTuple):
    """A table of texts; the first column is a name, the others are figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Picture(NamedTuple):
    """An image file beside the report."""

    file: str
    caption: str


class Statement(NamedTuple):
    """A statement of the paper, or an expectation, with the observed result."""

    text: str
    holds: bool | None
    """None where it cannot be judged."""
    seen: str
    lacks: str = ""
    """What it would take to judge it, where it is not."""

    @property
    def verdict(self) -> str:
        """Confirmed, not confirmed, or not judged."""
        return {True: "confirmed", False: "**not confirmed**", None: "not judged"}[self.holds]

    @property
    def told(self) -> str:
        """The statement, what was seen, and what is lacking."""
        return " ".join(filter(None, [self.text, f"Seen: {self.seen}", self.lacks]))


Part = Heading | Subheading | Text | ReportTable | Picture | Statement


class Report(NamedTuple):
    """What was written, and what it says."""

    parts: Sequence[Part]
    files: tuple[str, ...]

    @property
    def statements(self) -> list[Statement]:
        """The paper's statements and ours, with what was seen."""
        return [part for part in self.parts if isinstance(part, Statement)]


def markdown(title: str, parts: Sequence[Part]) -> str:
    """The report as Markdown."""
    return "\n\n".join([f"# {title}", *map(_markdown, parts)]) + "\n"


def page(title: str, parts: Sequence[Part]) -> str:
    """The report as an HTML page that needs nothing but its images."""
    style = (
        "body{font:16px/1.5 sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}img{max-width:100%}"
        "table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid #ccc;text-align:right}"
        "td:first-child,th:first-child{text-align:left}"
    )
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    return "\n".join([head, f"<style>{style}</style>", f"<h1>{html.escape(title)}</h1>", *map(_html, parts), "</html>"])


def _markdown(part: Part) -> str:
    match part:
        case Heading(text):
            return f"## {text}"
        case Subheading(text):
            return f"### {text}"
        case Text(text):
            return text
        case ReportTable(header, rows):
            lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
            return "\n".join("| " + " | ".join(line) + " |" for line in lines)
        case Picture(file, caption):
            return f"![{caption}]({file})\n\n{caption}"
        case Statement():
            return f"- {part.verdict}: {part.told}"


def _html(part: Part) -> str:
    match part:
        case Heading(text):
            return f"<h2>{_escape(text)}</h2>"
        case Subheading(text):
            return f"<h3>{_escape(text)}</h3>"
        case Text(text):
            return f"<p>{_escape(text)}</p>"
        case ReportTable(header, rows):
            cells = ["".join(f"<th>{_escape(name)}</th>" for name in header)]
            cells += ["".join(f"<td>{_escape(value)}</td>" for value in row) for row in rows]
            return "<table>" + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"
        case Picture(file, caption):
            shown = f"<figcaption>{_escape(caption)}</figcaption>"
            return f'<figure><img src="{_escape(file)}" alt="">{shown}</figure>'
        case Statement():
            return f"<p><b>{part.verdict.strip('*')}</b>: {_escape(part.told)}</p>"


def _escape(text: str) -> str:
    """Safe for HTML, without the backticks of Markdown."""
    return html.escape(text.replace("`", ""))
