"""Files from elsewhere: the user's own copy, an earlier download, or a download that resumes and is checked."""

import contextlib
import hashlib
import http.client
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from partita.errors import InputError
from partita.io.lock import hold

TIMEOUT = 30.0
"""Timeout of a server's response, in seconds."""

CHUNK = 1 << 16
"""Bytes read at a time."""


class Remote(NamedTuple):
    """A file with its URL and its expected digest."""

    folder: str
    name: str
    url: str
    sha256: str


def cache() -> Path:
    """The directory downloads are kept in: `$PARTITA_CACHE`, or `partita` in the user's cache directory."""
    own = os.environ.get("PARTITA_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "partita"


def find(folder: str, name: str) -> Path | None:
    """The file under `$PARTITA_DATA`, which is the user's own, or in the cache; None if it is in neither."""
    data = os.environ.get("PARTITA_DATA")
    places = [Path(data).expanduser()] if data else []
    for place in [*places, cache()]:
        path = place / folder / name
        if path.is_file():
            return path
    return None


def fetch(remote: Remote, progress: bool | None = None) -> Path:
    """The local file, or else a download; an interrupted download is resumed.

    Files in the cache have a verified digest. `progress` shows a bar,
    by default on a terminal.
    """
    found = find(remote.folder, remote.name)
    if found:
        return found
    if not remote.url.startswith(("http://", "https://")):
        raise InputError(f"{remote.url} cannot be downloaded: give an address that begins with http:// or https://.")
    target = cache() / remote.folder / remote.name
    part = target.with_name(f"{remote.name}.part")
    with _download_lock(target):
        # Another process may have been downloading it while this one waited.
        if not target.is_file():
            _download(remote, part, progress)
            _check(remote, part)
            os.replace(part, target)
    return target


@contextlib.contextmanager
def _download_lock(target: Path) -> Iterator[None]:
    """Lets one process at a time download a file."""
    lock = target.with_name(f"{target.name}.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise InputError(f"{target.parent} cannot be written to ({error}): set PARTITA_CACHE to a directory.") from None
    with hold(lock):
        yield


def _download(remote: Remote, part: Path, progress: bool | None) -> None:
    """Downloads to `part`; resumes if the server supports range requests, and restarts otherwise."""
    start = part.stat().st_size if part.exists() else 0
    request = Request(remote.url, headers={"User-Agent": "partita"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
            return _download(remote, part, progress)
        raise _unavailable(remote, f"the server answers {error.code} {error.reason}") from None
    except (URLError, OSError, http.client.HTTPException) as error:
        raise _unavailable(remote, str(getattr(error, "reason", error))) from None
    with answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            part.unlink(missing_ok=True)
            raise _unavailable(remote, "the server sends another range than requested")
        _receive(answer, remote, part, start, progress)
    return None


def _receive(answer: http.client.HTTPResponse, remote: Remote, part: Path, start: int, progress: bool | None) -> None:
    """Writes the response after the first `start` bytes of `part`, and keeps it if the download is interrupted."""
    total = None if answer.length is None else start + answer.length
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        disable=not (console.is_terminal if progress is None else progress),
    )
    received, reason = start, "the connection was closed"
    with bars, part.open("ab" if start else "wb") as file:
        task = bars.add_task(remote.name, total=total, completed=start)
        try:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                received += len(chunk)
                bars.update(task, completed=received)
            complete = total is None or received == total
        except (OSError, http.client.HTTPException) as error:
            complete, reason = False, str(error)
    if not complete:
        whole = "" if total is None else f" of {total}"
        raise InputError(
            f"The download of {remote.name} broke off after {received}{whole} bytes ({reason}): run again to resume."
        )


def _check(remote: Remote, part: Path) -> None:
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest == remote.sha256:
        return
    part.unlink()
    raise InputError(
        f"{remote.name} from {remote.url} has sha256 {digest} instead of {remote.sha256} and was removed: run again, "
        f"or put a right copy at $PARTITA_DATA/{remote.folder}/{remote.name}."
    )


def _unavailable(remote: Remote, reason: str) -> InputError:
    return InputError(
        f"{remote.name} cannot be downloaded from {remote.url} ({reason}): put it at "
        f"$PARTITA_DATA/{remote.folder}/{remote.name} or at {cache() / remote.folder / remote.name}."
    )
