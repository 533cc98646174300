"""Where there is no fcntl, which is on Windows, as far as that can be seen elsewhere."""

import contextlib
import subprocess
import sys
import types

import pytest

from partita.io import lock

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios")))
import partita
POSIX = ("partita.__main__",)
for module in pkgutil.walk_packages(partita.__path__, "partita."):
    if module.name in POSIX:
        continue
    try:
        importlib.import_module(module.name)
        print(module.name)
    except partita.InputError as error:
        assert "is not installed: pip install" in str(error), error
"""


def test_every_module_can_be_imported_without_what_only_posix_has():
    """Dask and Flower, which extras install, may need it themselves: then they count as not installed."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"partita.io.lock", "partita.cli.federation", "partita.storage.ledger"} <= set(done.stdout.split())


class Windows(types.ModuleType):
    """msvcrt's locks: of one byte at the file's position, refused at once or, here, at once after ten seconds."""

    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2

    def __init__(self, busy=0):
        super().__init__("msvcrt")
        self.calls, self.busy = [], busy

    def locking(self, handle, mode, size):
        assert size == 1
        self.calls.append(mode)
        if mode != self.LK_UNLCK and self.busy:
            self.busy -= 1
            raise PermissionError(13, "Permission denied")


@pytest.fixture
def windows(monkeypatch):
    def install(busy):
        system = Windows(busy)
        monkeypatch.setitem(sys.modules, "msvcrt", system)
        monkeypatch.setattr(lock, "fcntl", None)
        return system

    return install


def test_a_file_is_locked_and_released_on_windows(windows, tmp_path):
    system = windows(busy=0)
    with contextlib.suppress(ZeroDivisionError), lock.hold(tmp_path / "lock"):
        assert system.calls == [system.LK_LOCK]
        _ = 1 / 0
    assert system.calls == [system.LK_LOCK, system.LK_UNLCK]


def test_a_file_that_another_holds_is_waited_for_on_windows(windows, tmp_path):
    system = windows(busy=2)
    with lock.hold(tmp_path / "lock"):
        assert system.calls == [system.LK_LOCK] * 3


def test_a_file_that_another_holds_is_said_to_be_held_on_windows(windows, tmp_path):
    system = windows(busy=1)
    assert lock.held(tmp_path / "lock")
    assert system.calls == [system.LK_NBLCK]
    assert not lock.held(tmp_path / "lock")
