"""A fit in a folder: its spec, its factors and where its rows came from, to be updated later. No rows are kept.

`study.json` names the file of the factors, which is written first, under another name each time: so that a folder
holds one fit or the other, whenever writing is interrupted.
"""

import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax import enable_x64

from partita.errors import DamagedFileError, DiskError
from partita.inputs import check_path
from partita.io.archive import understood
from partita.io.atomic import write_text
from partita.io.checksum import checksum
from partita.io.lock import hold
from partita.io.settings import build
from partita.results.history import History
from partita.server.run import Result
from partita.server.stopping import Status
from partita.stream import Stream
from partita.tables.reading import Site
from partita.tables.sources import Source
from partita.tables.spec import Spec

__all__ = ["Study", "held_study", "load_study", "save_study"]

_FORMAT = 1
_CONTENTS = "study.json"
_KIND = "study"


class Study(NamedTuple):
    """What a folder holds of a fit."""

    spec: Spec
    stream: Stream
    sites: tuple[Site, ...]
    """Without their rows."""
    sources: tuple[Source, ...]
    result: Result


@contextlib.contextmanager
def held_study(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Keeps other processes from changing a study meanwhile."""
    path = _folder(folder)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold(path / ".lock"))
        except PermissionError as error:
            raise DiskError(path, error.strerror or error) from error
        yield path


def save_study(folder: str | os.PathLike[str], study: Study) -> None:
    """Writes a study; what the folder held of another before goes."""
    check_path(folder)
    path = Path(folder)
    factors = f"factors-{secrets.token_hex(8)}.npz"
    with enable_x64(True):
        study.stream.save(path / factors)
    contents = {
        "format": _FORMAT,
        "spec": study.spec.to_dict(),
        "factors": factors,
        "sites": [{"name": site.name, "rows": site.rows, "dropped": site.dropped} for site in study.sites],
        "sources": [dataclasses.asdict(source) for source in study.sources],
        "status": study.result.status.value,
        "message": study.result.message,
    }
    try:
        write_text(path / _CONTENTS, json.dumps({"checksum": _sum(contents), "study": contents}, indent=1) + "\n")
    except BaseException:
        (path / factors).unlink(missing_ok=True)
        raise
    for old in path.glob("factors-*.npz"):
        if old.name != factors:
            with contextlib.suppress(OSError):
                old.unlink()


def load_study(folder: str | os.PathLike[str]) -> Study:
    """The study that a folder holds; anything else raises an `InputError` of one sentence."""
    path = _folder(folder)
    with understood(path / _CONTENTS, _KIND):
        written = json.loads((path / _CONTENTS).read_text(encoding="utf-8"))
        contents = written["study"]
        if written["checksum"] != _sum(contents):
            raise ValueError("its checksum is another one")
    if contents["format"] != _FORMAT:
        raise DamagedFileError(f"{path} has format {contents['format']}, but this version reads {_FORMAT}: fit anew.")
    spec = Spec.from_dict(contents["spec"])
    with enable_x64(True):
        stream = Stream(spec.method(), spec.model(), spec.prior()).load(path / str(contents["factors"]))
        with understood(path / _CONTENTS, _KIND):
            sites = tuple(Site(str(site["name"]), {}, site["rows"], site["dropped"]) for site in contents["sites"])
            if _names(sites) != stream.names:
                raise ValueError("its sites are not those of its factors")
            sources = tuple(build(Source, source, str(path)) for source in contents["sources"])
            status = Status(contents["status"])
        assert stream.state is not None
        result = Result(stream.posterior, status, str(contents["message"]), History(), stream.state)
    return Study(spec, stream, sites, sources, result)


def _folder(folder: str | os.PathLike[str]) -> Path:
    check_path(folder)
    if not (Path(folder) / _CONTENTS).is_file():
        raise DamagedFileError(
            f"{folder} is no folder of a fit: make one with partita fit --output {folder}, or with fit.save."
        )
    return Path(folder)


def _names(sites: Sequence[Site]) -> tuple[str, ...]:
    return tuple(site.name for site in sites)


def _sum(contents: Any) -> str:
    return checksum(json.dumps(contents, sort_keys=True).encode()).hex()
