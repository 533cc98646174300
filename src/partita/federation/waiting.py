"""What a running server waits for, in a line: clients to enrol, or their answers."""

from collections.abc import Sequence

from partita.federation.status import FederationStatus

__all__ = ["waiting"]

_STATES = ("enrolled", "working")


def waiting(now: FederationStatus) -> str:
    """A line for the terminal that changes when there is something new."""
    names = {state: [member.name for member in now.members if member.state == state] for state in _STATES}
    absent = [member.name for member in now.members if member.state in ("expected", "incompatible")]
    troubles = [
        f" {member.name}: {member.last_error}" for member in now.members if member.name in absent and member.last_error
    ]
    missing = f" Not enrolled: {_listed(absent)}.{''.join(troubles)}" if absent else ""
    if not now.step and not names["working"]:
        enrolled = f"Enrolled: {_listed(names['enrolled'])}. " if names["enrolled"] else ""
        if absent and not now.assembled:
            return f"{enrolled}Waiting for {_listed(absent)} to enrol.{''.join(troubles)}"
        task = "The first round begins." if now.agreed else "They agree on the design."
        return f"{enrolled}{task}{missing}"
    residual = "" if now.residual is None else f", residual {now.residual:.2g} nats"
    asked = names["working"]
    answers = f"the answer{'s' if len(asked) > 1 else ''} of {_listed(asked)}" if asked else "the next step"
    return f"{now.rounds:.1f} rounds, {now.communications} communications{residual}: waiting for {answers}.{missing}"


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
