"""Files that are there whole or not at all."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], None]) -> None:
    """Has `fill` write a new file beside `path`, and puts it in place by a rename once it is on disk."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text."""

    def fill(file: IO[bytes]) -> None:
        file.write(text.encode())

    write(path, fill)
