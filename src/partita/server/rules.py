"""How long the server waits for clients, for how many, and what it accepts of them."""

from typing import NamedTuple

import numpy as np

from partita.errors import SettingsError
from partita.server.admission import Admission
from partita.server.aggregation import Aggregation


class Rules(NamedTuple):
    """How long the server waits for clients, and for how many; times are in seconds of the engine's clock."""

    deadline: float = np.inf
    """How long a client has for an answer."""
    quorum: float = 1.0
    """What part of those asked must have answered, rounded down, for a step to go on without the others."""
    pause: float = 1.0
    """How long to wait before clients that failed are asked again."""
    until: float = np.inf
    """When to stop waiting at all."""
    admission: Admission = Admission()
    """What an answer must keep to."""

    def check(self, aggregation: Aggregation) -> None:
        """Raises an `InputError` for a setting that makes no sense, or that the aggregation cannot keep."""
        if not (self.deadline > 0 and self.pause > 0):
            raise SettingsError(f"A deadline ({self.deadline}) and a pause ({self.pause}) are times above 0.")
        if not 0 <= self.quorum <= 1:
            raise SettingsError(f"The quorum is a part of the clients from 0 to 1, not {self.quorum}.")
        self.admission.check()
        if self.admission.compares and not aggregation.keeps_product:
            raise SettingsError(
                f"{type(aggregation).__name__} does not keep every client's own factor, so that bounds on change, "
                "dominance and prominence cannot be judged: leave them out, or use PVI with damping."
            )
