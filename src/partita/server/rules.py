"""How long the server waits for clients, for how many, what it accepts of them, and whether it stops early."""

from typing import NamedTuple

import numpy as np

from partita.errors import SettingsError
from partita.inputs import check_kind, check_number
from partita.server.admission import Admission
from partita.server.aggregation import Aggregation
from partita.server.early_stopping import EarlyStopping

__all__ = ["Rules"]


class Rules(NamedTuple):
    """Deadline, quorum and retry policy; times are in seconds of the engine's clock."""

    deadline: float = np.inf
    """Seconds a client has to answer a task."""
    quorum: float = 1.0
    """The fraction of the selected clients that must answer (rounded down) before a step proceeds without the rest."""
    pause: float = 1.0
    """Seconds before a failed client is retried."""
    until: float = np.inf
    """The time at which the run times out."""
    admission: Admission = Admission()
    """Bounds that an answer must satisfy."""
    early: EarlyStopping | None = None
    """When the run ends before it has converged; None for never."""

    def check(self, aggregation: Aggregation) -> None:
        """Raises an `InputError` for a setting that makes no sense, or that the aggregation cannot keep."""
        for what, seconds in {"deadline": self.deadline, "pause": self.pause}.items():
            check_number(what, seconds, lambda number: number > 0, "above 0")
        check_number("quorum", self.quorum, lambda number: 0 <= number <= 1, "a fraction from 0 to 1")
        check_number("time until", self.until)
        check_kind("admission", self.admission, Admission, "give partita.Admission(…)")
        self.admission.check()
        if self.early is not None:
            check_kind("early stopping", self.early, EarlyStopping, "give partita.early_stopping.EarlyStopping(…)")
            self.early.check()
        if self.admission.compares and not aggregation.keeps_product:
            raise SettingsError(
                f"{type(aggregation).__name__} does not keep every client's own factor, so that bounds on change, "
                "dominance and prominence cannot be judged: leave them out, or use PVI with damping."
            )
