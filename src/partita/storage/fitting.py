"""Whether a file is of this version, and of the run that goes on from it."""

import os

from partita.errors import DamagedFileError

__all__ = ["check_format", "check_run"]


def check_format(path: str | os.PathLike[str], kind: str, found: object, known: str) -> None:
    """Raises a `DamagedFileError` for a file of another version."""
    if found != known:
        raise DamagedFileError(f"{path} has format {found}, but this version reads {known}: use another {kind}.")


def check_run(path: str | os.PathLike[str], kind: str, same: bool, otherwise: str) -> None:
    """Raises a `DamagedFileError` unless something is the same as in the run; `otherwise` says what the file's has."""
    if not same:
        raise DamagedFileError(f"{path} belongs to a run {otherwise}: choose another {kind}.")
