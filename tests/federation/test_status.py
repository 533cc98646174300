"""How a federation stands, as its ledger and the terminal say it."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from partita.cli.status_table import show, since
from partita.federation.serve import LEDGER_FILE, serve
from partita.federation.status import MAX_ERROR_LENGTH, read_status, to_json
from partita.federation.waiting import waiting
from partita.io import wire
from partita.storage.ledger import Ledger
from support.clinics import HOSTILE, NAMES, current_status, federate, stopped
from support.weather import FaultyLink


def printed(now, width=80):
    text = io.StringIO()
    Console(file=text, width=width, force_terminal=True, color_system=None).print(show(now))
    return text.getvalue()


def test_the_table_fits_80_columns_without_truncating_names_or_numbers(tmp_path):
    stopped(tmp_path)
    now = current_status(tmp_path)
    wide = {"state": "expected", "rows": 100_000, "rounds": 12_345, "residual": 1.2e-05, "accepted": 12_345}
    wide |= {"refused": 1_234, "late": 1_234, "failed": 2, "last_seen": 3599.0}
    members = tuple(dataclasses.replace(member, **wide) for member in now.members)
    now = dataclasses.replace(now, members=members, rounds=12345.6, communications=123_456, traffic=12_345_678_901)
    lines = printed(now).splitlines()
    assert max(map(len, lines)) <= 80
    for name in NAMES:
        shown = next(line for line in lines if line.startswith(name))
        cells = [name, "expected", "59 min", "100,000", "12345", "1.2e-05", "12345", "1234", "1234"]
        assert shown.split() == " ".join(cells).split()
    assert "123,456 communications, 12,345.7 MB" in lines[1]
    assert lines[-1].endswith("(failed 2 times)")


def test_text_from_clients_is_printed_without_control_codes_or_markup(tmp_path):
    stopped(tmp_path)
    text = printed(current_status(tmp_path), width=200)
    assert "\x1b" not in text
    assert f"{NAMES[-1]}: a task failed: {HOSTILE.replace(chr(27), ' ')}" in text


def test_a_long_reason_is_cut(tmp_path):
    federation, clients = federate(tmp_path, "long " * MAX_ERROR_LENGTH)
    serve(tmp_path, federation, FaultyLink(clients))
    last_error = current_status(tmp_path).members[-1].last_error
    assert last_error == f"{('a task failed: ' + 'long ' * MAX_ERROR_LENGTH)[:MAX_ERROR_LENGTH]}…"


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path):
    stopped(tmp_path)
    now = current_status(tmp_path)
    assert now.history[0]["residual"] == float("inf")

    def refuse(constant):
        raise AssertionError(constant)

    found = json.loads(to_json(now), parse_constant=refuse)
    assert found["history"][0]["residual"] is None
    assert found["residual"] == now.residual


def test_traffic_counts_sent_and_received_bytes_across_a_server_restart(tmp_path):
    federation, link = stopped(tmp_path)
    size = max(wire.unpack(message).size for message in link.sent)
    forgotten = sum(wire.unpack(message).size for message in link.sent) - current_status(tmp_path).traffic
    # killed between an answer and the next: what it had sent meanwhile was one task at most, or none
    assert 0 <= forgotten <= size
    serve(tmp_path, federation, link)
    everything = sum(wire.unpack(message).size for message in link.sent)
    assert everything - current_status(tmp_path).traffic == forgotten


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (7300, "2 h"), (2e5, "2 d")])
def test_durations_are_shown_in_their_largest_unit(seconds, text):
    assert since(seconds) == text


def test_who_does_not_fit_is_named_with_the_reason_while_others_run(tmp_path):
    """Of one that came late, the server's progress said no more than that it had not enrolled."""
    federation, _ = stopped(tmp_path)
    Ledger(tmp_path / LEDGER_FILE).note("late", "incompatible", "Its file has no rows.")
    said = waiting(read_status(tmp_path, federation.name, (*federation.clients, "late")))
    assert said.endswith("Not enrolled: late. late: it does not fit: Its file has no rows.")
