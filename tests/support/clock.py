"""A clock of its own for a process, which another one sets: `clock.py FILE ARGUMENTS` runs partita with it.

The time of day is moved by the seconds that stand in the file at every look. (Under libfaketime `time.sleep` fails.)
"""

import os
import sys
import time
from pathlib import Path


def set_by(file, seconds):
    """Sets a process's clock so many seconds ahead of the machine's."""
    new = file.with_suffix(".new")
    new.write_text(f"{seconds:+.3f}\n")
    os.replace(new, file)


def moved(file):
    """Moves this process's time of day."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + float(file.read_text())
    time.time_ns = lambda: now_ns() + int(float(file.read_text()) * 1e9)


if __name__ == "__main__":
    moved(Path(sys.argv[1]))
    from partita.cli import main

    sys.argv = ["partita", *sys.argv[2:]]
    main()
