"""Compiled programs that are kept between processes, in a folder of the user's.

JAX stores programs by digests of what they are and of the machine, but neither bounds their number without another
library nor writes its files in one piece. So every process has a folder of its own, with links to all that are kept,
and moves its new programs to the others when it ends. A process that is killed leaves nothing half written.
"""

import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from partita.errors import SettingsError
from partita.inputs import check_whole
from partita.io.lock import hold

__all__ = ["VARIABLE", "keep_programs", "programs_folder"]

VARIABLE = "PARTITA_PROGRAMS"
"""The environment variable with the folder for programs, or with `off`."""
_MEGABYTES = 512
_PROGRAMS = "*-cache"
"""How JAX calls a stored program's file."""
_OWN = "process-"
_DAY = 86400.0
_WRITTEN_BY_OTHERS = 0o022


def programs_folder() -> Path | None:
    """Where commands keep programs: as the environment says, None for nowhere, by default the user's cache folder."""
    said = os.environ.get(VARIABLE)
    if said is not None:
        return Path(said) if said not in ("", "off") else None
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return None  # JAX keeps them there
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "partita" / "programs"


def keep_programs(folder: str | os.PathLike[str], megabytes: int = _MEGABYTES) -> None:
    """Keeps what this process compiles from now on in a folder, and takes from there what others have compiled.

    Several processes may do so at a time. Whoever can write to the folder can have programs run, so a folder that is
    not the user's own is refused. The oldest programs are deleted when there are too many.

    Args:
        folder: where they are kept; it is made if it is not there.
        megabytes: how much the folder may hold when a process begins.

    """
    check_whole("number of megabytes", megabytes)
    shared = Path(folder)
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(shared)
    with hold(shared / "lock"):
        _tidied(shared, megabytes * 2**20)
        own = Path(tempfile.mkdtemp(prefix=_OWN, dir=shared))
        for program in shared.glob(_PROGRAMS):
            try:
                os.link(program, own / program.name)
            except OSError:  # a file system without links
                shutil.copyfile(program, own / program.name)
    known = {program.name for program in own.glob(_PROGRAMS)}
    # a folder for XLA's own would be part of what programs are digested with
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_max_size", -1)
    jax.config.update("jax_compilation_cache_dir", str(own))
    compilation_cache.reset_cache()
    atexit.register(_given_back, own, shared, known)


def _check_own(folder: Path) -> None:
    """Raises an `InputError` where somebody else can write to a folder, as far as its mode shows."""
    about = folder.stat()
    theirs = hasattr(os, "geteuid") and about.st_uid != os.geteuid()
    if theirs or (os.name == "posix" and about.st_mode & _WRITTEN_BY_OTHERS):
        raise SettingsError(
            f"Others can write to {folder}, from where this process would run programs: take that from them with "
            f"`chmod go-w`, or name a folder of your own in {VARIABLE}."
        )


def _tidied(shared: Path, size: int) -> None:
    """Removes the oldest programs beyond a size, and what processes that were killed have left a day ago."""
    for left in shared.glob(f"{_OWN}*"):
        if time.time() - left.stat().st_mtime > _DAY:
            shutil.rmtree(left, ignore_errors=True)
    total = 0
    about = [(program, program.stat()) for program in shared.glob(_PROGRAMS)]
    for program, found in sorted(about, key=lambda pair: pair[1].st_mtime, reverse=True):
        total += found.st_size
        if total > size:
            program.unlink()


def _given_back(own: Path, shared: Path, known: set[str]) -> None:
    """Moves new programs to the shared folder, each in one piece, and removes the process's own."""
    for program in own.glob(_PROGRAMS):
        if program.name not in known:
            program.replace(shared / program.name)
    shutil.rmtree(own, ignore_errors=True)
