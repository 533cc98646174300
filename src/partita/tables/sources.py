"""Where rows came from: files that are read again when their rows are needed again. Rows themselves are not kept."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.errors import DataError
from partita.io.checksum import checksum_of_file
from partita.tables.reading import Site, frame_of, sites_of
from partita.tables.spec import Settings

__all__ = ["Source", "read_again", "read_batch", "source_of"]


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, with what it is known by."""

    path: str
    checksum: str
    """Of its bytes, when it was read."""
    sites: str = ""
    """The column that says whose each row is; empty where all rows are one batch."""
    name: str = ""
    """Of that batch; empty where sites have names of their own."""


def source_of(data: Any, sites: str = "", name: str = "") -> tuple[Source, ...]:
    """The file that a table is; none for a data frame."""
    if not isinstance(data, str | os.PathLike):
        return ()
    path = Path(data).resolve()
    return (Source(str(path), _checksum(path), sites, name),)


def read_batch(settings: Settings, data: Any, name: str) -> Site:
    """The rows of one batch."""
    (site,) = sites_of(frame_of(data), settings.columns, None, settings.optional)
    return site._replace(name=name)


def read_again(
    settings: Settings,
    sites: Sequence[Site],
    sources: Sequence[Source],
    remedy: str = "update without revisiting, or fit all tables anew; in a federation use `partita federation retire`",
) -> tuple[Site, ...]:
    """The sites with their rows, those that are not at hand from their files; an error ends with the remedy."""
    missing, found = {site.name for site in sites if not site.columns}, dict[str, Site]()
    for source in sources if missing else ():
        if source.name and source.name not in missing:
            continue
        path = Path(source.path)
        if not path.exists():
            raise DataError(f"{path} is gone, where rows came from that are needed again: put it back.")
        if _checksum(path) != source.checksum:
            raise DataError(f"{path} has changed since its rows were taken in: put back what it held.")
        if source.name:
            found[source.name] = read_batch(settings, path, source.name)
        else:
            read = sites_of(frame_of(path), settings.columns, source.sites or None, settings.optional)
            found |= {site.name: site for site in read}
    if lost := sorted(missing - found.keys()):
        raise DataError(
            f"The rows of {lost[0]} are not at hand, and came from no file that could be read again: {remedy}."
        )
    return tuple(site if site.columns else found[site.name] for site in sites)


def _checksum(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return checksum_of_file(file).hex()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its name.") from None
