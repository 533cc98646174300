"""What is printed and drawn in a notebook is what is printed and drawn elsewhere."""

import pytest
from rich import console

from partita.federation.grid import printed
from partita.tables.coefficients import text_table
from partita.tables.picture import Picture

TABLES = {
    "fit": lambda: text_table("A title", ("", "mean"), [("age", "0.5")], ["A note."]),
    "federation": lambda: printed("A title", [{"name": "age", "mean": 0.5}]),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_is_a_text_where_rich_would_display_it(table, monkeypatch):
    expected = table()
    monkeypatch.setattr(console, "_is_jupyter", lambda: True)
    assert table() == expected


def test_a_picture_is_shown_without_pyplot():
    assert Picture()._repr_png_().startswith(b"\x89PNG")
