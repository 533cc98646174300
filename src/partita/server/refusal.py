"""Refusals of answers: a machine-readable reason and a sentence for users."""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Reason", "Refusal", "refusals", "written"]


class Reason(enum.Enum):
    """The reasons for a refusal; a run's status depends on these, never on the sentence."""

    NOT_FINITE = "not finite"
    IMPROPER = "improper"
    IMPROPER_STEP = "improper step"
    LOWER_FREE_ENERGY = "lower free energy"
    NO_MOMENTS = "no moments"
    INCOMPLETE_ROUND = "incomplete round"
    LEFT_OUT = "left out"
    DEFICIT = "deficit"
    CHANGE = "change"
    DOMINANCE = "dominance"
    PROMINENCE = "prominence"


class Refusal(NamedTuple):
    """Why an answer was refused."""

    reason: Reason
    sentence: str
    """The end of a sentence that begins with "The answer"."""


def written(refusals: Mapping[int, Refusal]) -> list[tuple[int, str, str]]:
    """Refusals by client as JSON, in order."""
    return [(client, refusal.reason.value, refusal.sentence) for client, refusal in refusals.items()]


def refusals(written: Sequence[Sequence]) -> dict[int, Refusal]:
    """The inverse of `written`."""
    return {client: Refusal(Reason(reason), sentence) for client, reason, sentence in written}
