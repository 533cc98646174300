"""Pieces of Python in the pages run, in their order, with what the pieces before them on the page have defined."""

import pytest

from docs.pages import ROOT, Block, blocks, title

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


def run(page: str, pieces: list[Block]) -> None:
    names = {"__name__": "page"}
    for piece in pieces:
        if piece.runs:
            exec(compile("\n" * (piece.line - 1) + piece.text, page, "exec"), names)


WITH_CODE = [page for page in PAGES if any(block.language == "python" and block.runs for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=title)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(str(page), [block for block in blocks(page) if block.language == "python"])


def test_code_blocks_share_a_namespace_and_failures_are_found():
    fine, wrong = Block(1, "python", "a = 1\n", True), Block(3, "python", "assert a == 2\n", True)
    run("page", [fine, wrong._replace(runs=False)])
    with pytest.raises(AssertionError):
        run("page", [fine, wrong])


def test_a_code_block_is_skipped_only_with_a_reason(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a cluster -->\n```python\na\n```\n\n<!-- not run: -->\n```python\nb\n```\n")
    assert [block.runs for block in blocks(page)] == [False, True]
