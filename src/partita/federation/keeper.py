"""Runs a program until its standard input is closed, which the system does when whoever started it ends, however.

A file to be run by its path, so that it need not wait for anything of partita's to be imported.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

PATIENCE = 10.0
"""Seconds for a program to end by itself."""


def keep(command: list[str]) -> int:
    """Runs a program; returns as it did, or once it has been ended with everything that it started."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    code = process.poll()
    _end(process, signal.SIGTERM)
    _end(process, signal.SIGKILL)
    return 0 if code is None else abs(code)


def _end(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """Signals a program and its children, and waits until none of them is there."""
    until = time.monotonic() + PATIENCE
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
