"""The notebooks run from the first cell to the last, and print what is stored in them."""

import json

import pytest

from docs.notebooks import NOTEBOOKS, cells, outputs, pictures, run, store, text
from docs.pages import title


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=title)
def test_a_notebook_prints_what_it_has_stored(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = cells(notebook)
    for cell, (printed, value) in zip(stored, run(["".join(cell["source"]) for cell in stored]), strict=True):
        found = outputs(printed, value, 1)
        assert text(found) == text(cell["outputs"]), "".join(cell["source"])
        assert pictures(found) == pictures(cell["outputs"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=title)
def test_a_notebook_has_few_pictures_and_no_paths_of_a_machine(notebook):
    whole = notebook.read_text()
    assert whole.count('"image/png"') <= 2
    assert len(whole) < 200_000
    assert not any(place in whole for place in ("/tmp", "/home", "/work", "/Users"))


def test_another_output_is_found(tmp_path):
    cell = {"cell_type": "code", "source": ["a = 2\n", "print(a)\n", "a + 1"], "outputs": [], "execution_count": None}
    notebook = tmp_path / "one.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": []}, cell]}))
    store(notebook)
    (stored,) = cells(notebook)
    assert text(stored["outputs"]) == "2\n3"
    (ran,) = run(["a = 2\nprint(a)\na + 2"])
    assert text(outputs(*ran, 1)) != text(stored["outputs"])
