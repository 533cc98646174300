"""Supervises a program: ends it, with its children, when standard input is closed, that is when the parent dies.

It is run by its path, so that it starts without importing partita.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

__all__ = ["PATIENCE", "keep"]

PATIENCE = 10.0
"""Seconds that a program has to end after a signal."""


def keep(command: list[str]) -> int:
    """Runs a program until it exits or standard input is closed; returns its exit code, or 0 if it was ended."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    code = process.poll()
    _end(process, signal.SIGTERM)
    _end(process, signal.SIGKILL)
    return 0 if code is None else abs(code)


def _end(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """Signals a process group and waits until it is gone."""
    until = time.monotonic() + PATIENCE
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
