"""Labels of a binary response: which texts count as 1 and which as 0. All clients agree on them in round 0."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from partita.data.columns import misfit
from partita.errors import DataError

__all__ = ["Labels", "agreed"]


@dataclasses.dataclass(frozen=True)
class Labels:
    """The texts of a response that count as 1, and those that count as 0."""

    ones: tuple[str, ...]
    zeros: tuple[str, ...] = ()
    """Those declared; without any, the only other text there is, if there is one."""

    @classmethod
    def of(cls, name: str, values: Iterable[str], ones: tuple[str, ...], zeros: tuple[str, ...]) -> Self:
        """The labels of a client's response, of which `ones` and maybe `zeros` are declared; raises `misfit`."""
        others = sorted(set(values) - {*ones, *zeros})
        if zeros and others:
            raise misfit(
                f"column {name!r} has labels that are neither positive nor negative", f", such as {others[0]!r}"
            )
        if len(others) > 1:
            raise misfit(
                f"column {name!r} has {len(others)} labels besides the positive ones, where one can count as 0: "
                "recode it, or list all that do as `negative`",
                f", such as {others[0]!r} and {others[1]!r}",
            )
        return cls(ones, zeros or tuple(others))

    def encode(self, values: Sequence[str]) -> np.ndarray:
        """1 and 0 for texts that are among the labels."""
        return np.isin(np.array(values, dtype=str), self.ones).astype(float)


def agreed(clients: Sequence[Labels | None]) -> Labels | None:
    """The labels of all clients, None if responses are numbers; an `InputError` where they code them differently."""
    known = [labels for labels in clients if labels is not None]
    if not known:
        return None
    if len(known) < len(clients):
        raise DataError("The response has labels at one client and numbers at another: give it one kind.")
    if len({labels.ones for labels in known}) > 1:
        raise DataError("Clients count different labels of the response as 1: declare the same.")
    zeros = sorted({labels.zeros for labels in known if labels.zeros})
    if len(zeros) > 1:
        first, second = (", ".join(map(repr, some)) for some in zeros[:2])
        raise DataError(
            f"The label of the response that counts as 0 is {first} at one client and {second} at another: recode one "
            "of them, or declare all that count as 0 as `negative`."
        )
    return Labels(known[0].ones, zeros[0] if zeros else ())
