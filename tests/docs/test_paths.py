"""Files and names of the library that the design's pages mention exist."""

import re
from pathlib import Path

import pytest

from docs.pages import ROOT, title
from docs.test_paper import defined

PAGES = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"]
HOMES = [ROOT, ROOT / "src" / "partita", ROOT / "experiments" / "src" / "partita_experiments"]
_FILE = re.compile(r"`([a-z_/]+\.py)(?::([\w.]+))?`")


def found(path: str) -> list[Path]:
    """The files that a path may mean; one without a folder may be anywhere in a package."""
    whole = [home / path for home in HOMES]
    inside = [file for home in HOMES[1:] for file in home.rglob(path)] if "/" not in path else []
    return [file for file in (*whole, *inside) if file.exists()]


def lacking(text: str) -> list[str]:
    """The files and names in a text that do not exist."""
    return [
        f"{path}:{name}" if name else path
        for path, name in _FILE.findall(text)
        if not any(not name or name in defined(file) for file in found(path))
    ]


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_files_and_names_of_a_page_exist(page):
    assert lacking(page.read_text()) == []


def test_missing_references_are_found():
    text = "`server/step.py:step` `step.py` `server/step.py:dance` `step.py:dance` `nowhere/step.py` `nowhere.py`"
    assert lacking(text) == ["server/step.py:dance", "step.py:dance", "nowhere/step.py", "nowhere.py"]
