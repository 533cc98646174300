"""Texts from clients are plain, and there are not so many of them that logs grow without end."""

import pytest

from partita.io.wire import is_plain
from partita.storage import ledger
from partita.storage.ledger import Ledger


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "\u202eabc", "\u2028", "\x00", "\x7f", "\ue000", "\x9b1m"])
def test_what_moves_a_cursor_or_turns_a_line_is_not_plain(text):
    assert not is_plain(text)


@pytest.mark.parametrize("text", ["", "much", "zür\u00a0ich", "\U0001f600", "<b>", "[red]", "$x$", "日本"])
def test_what_prints_is_plain(text):
    assert is_plain(text)


def test_so_many_events_of_a_client_are_noted_and_no_more(tmp_path, monkeypatch):
    """Anybody may send answers to nothing for ever."""
    monkeypatch.setattr(ledger, "_MOST_NOTES", 5)
    for _ in range(2):  # the server starts again
        kept = Ledger(tmp_path / "ledger.sqlite", durable=False)
        for k in range(10):
            kept.note("east", "late", f"{k}")
        kept.note("west", "late", "one")
    found = kept._db.execute("SELECT name, text FROM events WHERE event = 'late' ORDER BY place").fetchall()
    assert [text for name, text in found if name == "east"] == ["0", "1", "2", "3", "4 (the last that is noted)"]
    assert [text for name, text in found if name == "west"] == ["one", "one"]
