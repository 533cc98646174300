"""Links between files of the project lead to files, and their anchors to headings."""

import re
from pathlib import Path

import pytest

from docs.pages import PAGES, prose, title

_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = sum(other == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", other) is not None for other in found)
        found.add(f"{slug}-{count}" if slug in found else slug)
    return found


def broken(page: Path) -> list[str]:
    wrong = []
    for target in _LINK.findall(_CODE.sub("code", prose(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        there = (page.parent / path).resolve() if path else page
        readme = there / "README.md" if there.is_dir() else there
        if not there.exists() or (anchor and anchor not in anchors(readme)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_of_a_page_lead_somewhere(page):
    assert broken(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "there.md").write_text("# A heading: of `two` words\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[1](there.md#a-heading-of-two-words) [2](there.md#twice-1) [3](#here) [4](https://example.org/no) "
        "[`5`](gone.md) [6](there.md#twice-2) [7](#nowhere) ![8](no.png)\n```python\nf[0](gone)\n```\n`[9](code)`\n"
    )
    assert broken(page) == ["gone.md", "there.md#twice-2", "#nowhere", "no.png"]
