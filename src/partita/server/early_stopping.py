"""Early stopping by the server: a run ends where what clients report of their rows no longer rises."""

import dataclasses

import numpy as np

from partita.inputs import check_finite_number, check_whole
from partita.server.state import State

__all__ = ["EarlyStopping", "Flatness", "reported"]


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Ends a run where E_q[log p(y | θ)] is flat (`sec:experiments:fmnist`), as global VI on the server.

    It is the sum of what clients report of the posterior that each was last sent, and costs nothing. Solvers have the
    same rule for a visit: `Gradient(watch="ell", window=…, patience=…, tolerance=…)`.
    """

    window: int = 10
    """The number of steps over which it is averaged."""
    patience: int = 5
    """Ends after this many consecutive windows without improvement."""
    tolerance: float = 1e-3
    """The smallest improvement of a window's mean over the best one that counts, in nats."""

    def check(self) -> None:
        """Raises an `InputError` for a setting that makes no sense."""
        check_whole("window", self.window)
        check_whole("patience", self.patience)
        check_finite_number("tolerance of early stopping", self.tolerance)


class Flatness:
    """How long the value has been flat. Where it is the sum of more or fewer clients than before, it begins anew."""

    def __init__(self, rule: EarlyStopping) -> None:
        self.rule = rule
        self._begin(0)

    def _begin(self, clients: int) -> None:
        self.clients = clients
        self.best, self.flat = -np.inf, 0
        self.total, self.steps = 0.0, 0

    def add(self, value: float, clients: int) -> None:
        """Takes note of a step's value, which so many clients have reported."""
        if clients != self.clients:
            self._begin(clients)
        self.total, self.steps = self.total + value, self.steps + 1
        if self.steps < self.rule.window:
            return
        mean = self.total / self.steps
        self.flat = self.flat + 1 if mean - self.best < self.rule.tolerance else 0
        self.best = max(self.best, mean)
        self.total, self.steps = 0.0, 0

    @property
    def over(self) -> bool:
        """Whether patience is at an end."""
        return self.flat >= self.rule.patience


def reported(state: State) -> dict[str, float]:
    """What a row of the history says of the expected log-likelihood; nothing before all clients have answered.

    Returns:
        "ell", the sum of the clients' last reports, and "reporting", how many clients it is of.

    """
    ell = state.ell[state.communicating]
    return {"ell": float(ell.sum()), "reporting": len(ell)} if len(ell) and np.isfinite(ell).all() else {}
