"""The status of a federation as text for an 80-column terminal."""

from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from partita.federation.status import ClientStatus, FederationStatus
from partita.results.history import with_error

__all__ = ["amount", "show", "since"]

_LEFT = ("client", "state")
_COLUMNS = (*_LEFT, "seen", "rows", "rounds", "residual", "accepted", "refused", "late")


def show(now: FederationStatus) -> Group:
    """The run's numbers, a table of clients, and each client's last error.

    Names and reasons are untrusted: as `Text` they are shown literally, without markup.
    """
    grid = Grid(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        grid.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    for member in now.members:
        grid.add_row(*map(Text, _cells(member)))
    troubles = [_trouble(member) for member in now.members if member.last_error]
    return Group(*_facts(now), "", grid, *([""] if troubles else []), *troubles)


def _facts(now: FederationStatus) -> list[Text]:
    energy = ""
    if now.free_energy is not None:
        energy = (
            f"free energy {with_error(now.free_energy, now.free_energy_error or 0.0, ',.2f')} as clients reported it"
        )
    residual = "" if now.residual is None else f"residual {now.residual:.2g} nats"
    lines = [
        f"{now.rounds:.1f} rounds, {now.communications:,} communications, "
        f"{amount(now.traffic)} of arrays sent and received",
        ", ".join(filter(None, (energy, residual))),
    ]
    first = Text(f"{now.name}: the run has {f'ended. {now.ended}' if now.ended else 'not ended.'}", style="bold")
    return [first, *(Text(line) for line in lines if line)]


def _cells(member: ClientStatus) -> tuple[str, ...]:
    seen = "" if member.last_seen is None else since(member.last_seen)
    rows = "" if member.rows is None else f"{member.rows:,}"
    residual = "" if member.residual is None else f"{member.residual:.2g}"
    counts = map(str, (member.accepted, member.refused, member.late))
    return member.name, member.state, seen, rows, str(member.rounds), residual, *counts


def _trouble(member: ClientStatus) -> Text:
    times = f" (failed {member.failed} times)" if member.failed > 1 else ""
    return Text(f"{member.name}: {member.last_error}{times}", style="dim")


def amount(size: int) -> str:
    """A size in bytes as text."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def since(seconds: float) -> str:
    """A duration as text, in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
