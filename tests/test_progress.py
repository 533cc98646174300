"""A progress bar, shown only on a terminal."""

import io
import sys

import pytest

import partita as pt
from partita.server.monitor import Monitor
from support.problems import MODEL, PARTS, PRIOR, SOLVER


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def no_settings_of_the_terminal(monkeypatch):
    """The environment can make any stream a terminal, or a terminal a dumb one."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


def run(**settings):
    return pt.run(pt.methods.sequential(SOLVER, damping=0.1), MODEL, PRIOR, PARTS, communications=4, **settings)


@pytest.mark.parametrize("progress", [None, False])
def test_without_a_terminal_nothing_is_printed(progress, capfd):
    run(monitor=Monitor(progress=progress))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("progress", "terminal"), [(True, io.StringIO()), (True, Terminal()), (None, Terminal())])
def test_the_progress_bar_shows_the_runs_state_on_request_or_on_a_terminal(progress, terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", terminal)
    result = run(monitor=Monitor(progress=progress, label="three hospitals"))
    shown = terminal.getvalue()
    assert "three hospitals" in shown
    assert "4/4" in shown
    assert f"free energy {result.free_energy:.1f}, residual {result.history['residual'][-1]:.2g}" in shown
    assert capsys.readouterr().out == ""


def test_a_terminal_stays_quiet_when_the_bar_is_switched_off(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    run(monitor=Monitor(progress=False))
    assert sys.stderr.getvalue() == ""


def test_the_bar_counts_answers_when_the_budget_is_in_rounds(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    watching = pt.Method(SOLVER, pt.Synchronous(), pt.Backtracking(0.1, monitor_free_energy=True))
    pt.run(watching, MODEL, PRIOR, PARTS, rounds=2, monitor=Monitor(every=0))
    assert "6/6" in sys.stderr.getvalue()
    assert "free energy" not in sys.stderr.getvalue()
