"""Notebooks without Jupyter: runs their cells, and stores what these print (`make notebooks`)."""

import ast
import base64
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

from docs.pages import ROOT

NOTEBOOKS = sorted(ROOT.glob("examples/notebooks/*.ipynb"))
_SIZE = re.compile(r"[\d,]+ bytes")


def cells(notebook: Path) -> list[dict[str, Any]]:
    """The cells of code."""
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def run(sources: list[str]) -> Iterator[tuple[str, Any]]:
    """What each cell prints, and the value of its last line; all share a namespace, and the current folder."""
    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in sources:
        body, printed = ast.parse(source).body, io.StringIO()
        last = body.pop().value if isinstance(body[-1], ast.Expr) else ast.parse("None", mode="eval").body
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            value = eval(compile(ast.Expression(last), "cell", "eval"), names)
        yield printed.getvalue(), value


def outputs(printed: str, value: Any, count: int) -> list[dict[str, Any]]:
    """The same in the format of notebooks."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        found.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found


def text(found: list[dict[str, Any]]) -> str:
    """What a reader sees besides pictures.

    The size of a message differs by some bytes between processors, as the last digits of its numbers do.
    """
    parts = [each["text"] if each["output_type"] == "stream" else each["data"]["text/plain"] for each in found]
    return _SIZE.sub("… bytes", "".join("".join(part) for part in parts))


def pictures(found: list[dict[str, Any]]) -> int:
    """How many pictures there are."""
    return sum("image/png" in each.get("data", ()) for each in found)


def store(notebook: Path) -> None:
    """Runs a notebook in a folder of its own, and writes it with its outputs."""
    whole = json.loads(notebook.read_text(encoding="utf-8"))
    own = [cell for cell in whole["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for count, (cell, ran) in enumerate(zip(own, run(["".join(cell["source"]) for cell in own]), strict=True), 1):
            cell["execution_count"], cell["outputs"] = count, outputs(*ran, count)
    notebook.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    for notebook in NOTEBOOKS:
        store(notebook)
