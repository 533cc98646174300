"""`docs/paper.md` and `docs/labels.md`: what they mention exists, and counts add up."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from docs.pages import PAGES, ROOT, title

PAPER = (ROOT / "docs" / "paper.md").read_text()
LABELS = (ROOT / "docs" / "labels.md").read_text()
NUMBERS = dict(re.findall(r"^\| `([^`]+)` \| (\w+ [\w.]+) \|$", LABELS, re.MULTILINE))
VERDICTS = ("done", "partly", "missing")
_PATH = re.compile(
    r"`((?:src/partita|tests|experiments|docs|examples|benchmarks)/[\w./-]*)"  # a file or a folder
    r"(?:::(\w+)|:([\w.]+(?:,[\w.]+)*)(?:\((\w+)[=)])?)?"  # a test in it, or names, and an argument of the last
)
_LABEL = re.compile(r"\b((?:eq|alg|prop|sec|fig|tab|table|proof):[a-zA-Z][\w:-]*\w|eq-opt\d)")
_ROW = re.compile(r"^\| (\d+) \|.* \| \*\*(\w+)\*\*[^|]* \|$", re.MULTILINE)


@functools.cache
def defined(path: Path) -> set[str]:
    """What a file of Python defines, members of classes with the class before them."""
    found: set[str] = set()

    def visit(nodes: list[ast.stmt], before: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.add(before + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{before}{node.name}.")
            if isinstance(node, ast.FunctionDef):
                found.update(f"{before}{node.name}.{argument.arg}" for argument in node.args.args)
            for target in [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", []):
                if isinstance(target, ast.Name):
                    found.add(before + target.id)

    visit(ast.parse(path.read_text()).body, "")
    return found


def lacking(text: str) -> list[str]:
    """The paths, tests and names in a text that do not exist."""
    wrong = []
    for path, test, names, argument in _PATH.findall(text):
        file = ROOT / path
        if not file.exists():
            wrong.append(path)
        elif test and test not in defined(file):
            wrong.append(f"{path}::{test}")
        else:
            asked = [*filter(None, names.split(",")), *[f"{names.split(',')[-1]}.{argument}"] * bool(argument)]
            wrong += [f"{path}:{name}" for name in asked if name not in defined(file)]
    return wrong


def test_files_names_and_tests_exist():
    assert lacking(PAPER) == []


def test_missing_references_are_found():
    here = "tests/docs/test_paper.py"
    assert lacking(f"`{here}` `{here}::test_files_names_and_tests_exist` `{here}:PAPER,lacking` `tests/`") == []
    assert lacking(f"`{here}:lacking(text)` `{here}:lacking(text='')` `{here}:lacking('any')`") == []
    assert lacking(f"`{here}:PAPER,lacking(nothing)`") == [f"{here}:lacking.nothing"]
    assert lacking(f"`src/partita/nowhere.py:f` `{here}::test_no` `{here}:PAPER,no`(1)") == [
        "src/partita/nowhere.py",
        f"{here}::test_no",
        f"{here}:no",
    ]


def test_every_statement_has_a_number_and_a_verdict():
    numbers, verdicts = zip(*_ROW.findall(PAPER), strict=True)
    assert [int(number) for number in numbers] == list(range(1, 232))
    assert set(verdicts) <= set(VERDICTS)


def unproved(text: str) -> list[str]:
    """Rows that are done by no file that they name, and rows that are not and have no reason beside the verdict."""
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if _ROW.fullmatch(line)]
    return [
        row[0].strip()
        for row in rows
        if not (_PATH.search(row[4]) if "**done**" in row[5] else re.search(r"\*\*: \w.{4}", row[5]))
    ]


def test_what_is_done_is_shown_and_what_is_not_has_a_reason():
    assert unproved(PAPER) == []
    row = "| 1 | It works. | section 1 | — | {} | {} |"
    assert unproved(row.format("—", "**done**")) == unproved(row.format("`tests/`", "**missing**")) == ["1"]
    assert unproved(row.format("`tests/`", "**done**")) == unproved(row.format("—", "**partly**: Half of it.")) == []


def test_counts_are_those_of_the_tables():
    parts = re.split(r"^## ", PAPER, flags=re.MULTILINE)
    counted = {part.split("\n")[0]: Counter(verdict for _, verdict in _ROW.findall(part)) for part in parts[1:]}
    counted = {part: counts for part, counts in counted.items() if counts}
    counted["all"] = sum(counted.values(), Counter())
    said = re.findall(r"^\| \**\[?([^\]*|]+).*? \|" + r" \**(\d+)\** \|" * 4 + "$", parts[0], re.MULTILINE)
    expected = [(part, *(counts[verdict] for verdict in VERDICTS), counts.total()) for part, counts in counted.items()]
    assert [(part, *map(int, numbers)) for part, *numbers in said] == expected


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_labels_cited_in_code_have_a_number(folder):
    cited = {label for path in (ROOT / folder).rglob("*.py") for label in _LABEL.findall(path.read_text())}
    assert cited - set(NUMBERS) == set()


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_a_page_says_the_number_beside_a_label(page):
    """Of each label that a page cites, at least once, in the words of `docs/labels.md`."""
    text = " ".join(page.read_text().split())
    for label in set(_LABEL.findall(text)):
        number = re.escape(NUMBERS[label])
        beside = rf"{number},? \(?`{label}`|`{label}`,? \(?{number}\b|`{label}` \| {number}\b"
        assert re.search(beside, text, re.IGNORECASE), f"{label} stands without its number, {NUMBERS[label]}"
