"""Who took part in a run: for every client of the federation its rows, its answers, and why it has no part."""

import dataclasses
from collections.abc import Iterable, Mapping

from partita.federation.enrolment import Enrolment
from partita.io.wire import equal
from partita.server.run import Result

__all__ = ["Attendance", "attendance", "remarks", "sizes"]

_ANEW = "for an encoding without them, start a new run without it in another folder"


@dataclasses.dataclass(frozen=True)
class Attendance:
    """A client's part in a run."""

    name: str
    rows: int
    """How many rows it has; 0 if it did not enrol."""
    incomplete: int
    """How many rows it left out since a value is missing."""
    imputed: Mapping[str, int]
    """How many numbers were missing, by column; each became everybody's mean."""
    skipped: int
    """The rows that have no part in its last answer."""
    answers: int
    """How many of its answers were accepted."""
    took_part: bool
    """Whether the posterior holds a factor of its own."""
    refused: str
    """Why its last answer was refused; empty if it was not."""
    unfit: str
    """Why it could not enrol, as the rest of a sentence; empty if it did, or never came."""
    summed: bool = False
    """Whether columns are encoded by its sums of round 0 too."""

    @property
    def sentences(self) -> list[str]:
        """What a reader of the result has to know of it."""
        if not self.rows:
            return [f"{self.name} {self.unfit.rstrip('.') or 'never came'}."]
        if self.took_part:
            return []
        said = f"{self.name} has no part in the posterior"
        return [
            f"{said}, but columns are still encoded by its sums of round 0 too: {_ANEW}." if self.summed else f"{said}."
        ]

    @property
    def line(self) -> str:
        """Its rows and answers, in a line."""
        if not self.rows:
            return self.sentences[0]
        dropped = f"{self.skipped:,} dropped, as they have no proper site" if self.skipped else "none dropped"
        used = f"{self.rows - self.skipped:,} rows used, {dropped}" if self.took_part else f"{self.rows:,} rows"
        parts = [used, f"{self.answers:,} answers accepted"]
        if self.incomplete:
            parts.append(f"{self.incomplete:,} rows with missing values left out")
        if self.imputed:
            missing = ", ".join(f"{count:,} of {column}" for column, count in self.imputed.items())
            parts.append(f"missing numbers, set to the mean: {missing}")
        if self.refused:
            parts.append(f"the last answer was refused: it {self.refused}")
        return f"{self.name}: {'; '.join(parts)}{'' if self.took_part else '; it has no part in the posterior'}."


def attendance(reception: Enrolment, result: Result) -> list[Attendance]:
    """Everybody's part, in the order of federation.toml; others that took part come last."""
    state, refused, skipped = result.state, result.history.last_refused, result.history.last("skipped")
    asked = [name for name, hosted in zip(state.names, state.hosted, strict=True) if not hosted]
    answers = dict.fromkeys((*reception.federation.clients, *asked), 0)
    for row in result.history:
        for name in answers.keys() & set(row["clients"]):
            answers[name] += name not in row["refused"]
    held = zip(state.names, (factor.natural for factor in state.factors), strict=True)
    divided = {name for name, factor in held if state.keeps_product and equal(factor, factor.one())}
    return [
        Attendance(
            name,
            reception.rows.get(name, 0),
            reception.incomplete.get(name, 0),
            reception.imputed.get(name, {}),
            int(skipped.get(name, 0)),
            count,
            count > 0 and name not in divided,
            refused.get(name, ""),
            reception.unfit.get(name, ""),
            name in reception.summed,
        )
        for name, count in answers.items()
    ]


def sizes(members: Iterable[Attendance]) -> dict[str, tuple[int, int]]:
    """The rows of those that took part, and how many they left out."""
    return {member.name: (member.rows, member.incomplete) for member in members if member.took_part}


def remarks(members: Iterable[Attendance]) -> list[str]:
    """Sentences on those without a part in the posterior."""
    return [sentence for member in members for sentence in member.sentences]
