"""What `mkdocs` does besides rendering the pages of this folder.

It takes in the pages that are elsewhere in the project, so that each is written once; makes the reference from whatever
modules the package has; and turns links between files of the project into links between pages of the site. A link to a
file that has no page, such as a module, becomes plain text.
"""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = "partita"
ELSEWHERE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FOLDERS = ("experiments", "benchmarks")
"""Folders beside this one whose pages and pictures keep their places."""
HIDDEN = ("__main__", "cli", "experiments")
"""Modules of commands, which have `--help`, and no part of the library's interface."""

WIDE = ("paper.md",)
"""Pages whose tables take the room of the table of contents."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages that are elsewhere and those of the reference, and fills the folders named in the navigation."""
    for source, page in elsewhere().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, text in reference():
        files.append(File.generated(config, page, content=text))
    config.nav = [_filled(entry, files) for entry in config.nav or []]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links between files of the project to pages of the site, and gives wide pages their room."""
    here = page.file.src_uri
    if here in WIDE:
        page.meta["hide"] = ["toc"]
    sources = {page: source for source, page in elsewhere().items()}
    folder = os.path.dirname(sources.get(here, f"docs/{here}"))

    def led(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return found[0]
        source = os.path.normpath(os.path.join(folder, path))
        if (ROOT / source / "README.md").exists():
            source = f"{source}/README.md"
        if source in elsewhere() or source.startswith("docs/"):
            there = elsewhere().get(source, source.removeprefix("docs/"))
            return f"{picture}[{text}]({os.path.relpath(there, os.path.dirname(here) or '.')}{anchor and '#' + anchor})"
        return text if (ROOT / source).exists() else found[0]  # mkdocs reports what does not exist

    pieces = _FENCE.split(markdown)
    return "".join(piece if piece.startswith("```") else _LINK.sub(led, piece) for piece in pieces)


@functools.cache
def elsewhere() -> dict[str, str]:
    """The files of the project outside this folder that are on the site, and their places there."""
    kept = [path for folder in FOLDERS for kind in ("md", "png", "svg") for path in (ROOT / folder).rglob(f"*.{kind}")]
    return ELSEWHERE | {name: name for name in sorted(path.relative_to(ROOT).as_posix() for path in kept)}


def reference() -> Iterator[tuple[str, str]]:
    """The pages of the reference: the public names, and one for each module or package right below the root."""
    root = griffe.load(PACKAGE, search_paths=[ROOT / "src"], resolve_aliases=True)
    rows = ["| name | |", "|---|---|"]
    for name in root.exports or []:
        found = root[str(name)]
        target = found.final_target if found.is_alias else found
        rows.append(f"| [`pt.{name}`][{target.path}] | {_summary(target)} |")
    yield "reference/index.md", "\n".join(["# Reference", "", f"The names of `import {PACKAGE} as pt`:", "", *rows])
    for name, module in sorted(root.modules.items()):
        if name not in HIDDEN and not module.is_alias:
            yield f"reference/{name}.md", "\n".join([f"# {PACKAGE}.{name}", "", *_module(module)])


def _module(module: Any, heading: bool = False) -> Iterator[str]:
    """The directives for a module, whose page may have its name as title already, and for all modules in it."""
    own = [name for name, member in module.members.items() if not (member.is_alias or member.is_module)]
    public = [name for name in own if not name.startswith("_")]
    options = f"{{members: {public or 'false'}, show_root_heading: {str(heading).lower()}}}"
    yield f"::: {module.path}\n    options: {options}\n"
    for _, inner in sorted(module.modules.items()):
        if not inner.is_alias:
            yield from _module(inner, heading=True)


def _summary(target: Any) -> str:
    lines = target.docstring.value.split("\n\n")[0].splitlines() if target.docstring else []
    return " ".join(lines).replace("|", "∣")


def _filled(entry: Any, files: Files) -> Any:
    """An entry of the navigation, with the pages of a folder for the folder's name."""
    title, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
    if not (isinstance(value, str) and value.endswith("/")):
        return entry
    pages = [file.src_uri for file in files.documentation_pages() if file.src_uri.startswith(value)]
    return {title: sorted(pages, key=lambda page: (page.count("/") > 1 or not _is_index(page), page))}


def _is_index(page: str) -> bool:
    return page.rsplit("/")[-1] in ("index.md", "README.md")
