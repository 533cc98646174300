"""When does a run end, and how? Algorithm 1's "until convergence", budgets, and what tells that a run fails."""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from partita.errors import SettingsError
from partita.local.solvers import Outcome
from partita.results.history import History
from partita.server.bound import Evaluation
from partita.server.convergence import DISTANCE_LEFT, distance_left, rounds_left
from partita.server.early_stopping import EarlyStopping, Flatness
from partita.server.method import Method
from partita.server.refusal import Reason
from partita.server.state import State

__all__ = ["ROUNDS", "Budget", "Ending", "Status", "Stopping"]

ROUNDS = 100.0
"""How many rounds a run has that was given no budget."""


class Status(enum.Enum):
    """How a run ended."""

    CONVERGED = "converged"
    NEAREST = "nearest member"
    COMPLETE = "complete"
    STOPPED_EARLY = "stopped early"
    BUDGET_SPENT = "budget spent"
    IMPROPER = "improper"
    DIVERGED = "diverged"
    STALLED = "stalled"
    TIMED_OUT = "timed out"

    @property
    def arrived(self) -> bool:
        """Whether the run is where its method leads: at a fixed point, or at the nearest member of one's family."""
        return self in (Status.CONVERGED, Status.NEAREST)


class Ending(NamedTuple):
    """A run's status, and a sentence about it."""

    status: Status
    message: str


class Budget(NamedTuple):
    """When a run ends at the latest; trials of a damping take communications without answers."""

    communications: float
    answers: float
    passes: float
    """The number of answers after which a method of few passes is complete."""

    @classmethod
    def of(cls, method: Method, state: State, clients: int, rounds: float | None, communications: float | None) -> Self:
        """What a run may spend from a state on; a round is as many answers as there are clients."""
        if communications is None and rounds is None:
            rounds = ROUNDS
        passes = np.inf if method.passes is None else method.passes * clients
        answers = float(np.minimum(passes, np.inf if rounds is None else rounds * clients))  # keeps NaN, to be refused
        spendable = np.inf if communications is None else communications
        if not (spendable > 0 and answers > 0):
            raise SettingsError("The budget is empty: allow at least one communication.")
        return cls(state.communications + spendable, state.answers + answers, state.answers + passes)

    def spent(self, state: State) -> bool:
        """Whether a limit is reached."""
        return state.communications >= self.communications or state.answers >= self.answers


_ERRORS = 3.0
"""By how many standard errors a sampled free energy must fall to have fallen."""

_PATIENCE = 10.0
"""How many times the rounds it has had a run is advised to go on for; beyond, larger steps are the remedy."""
_LATELY = 50
"""How many of the last rows decide whether the free energy still rises."""
_CALMER = 3.0
"""By how much steps are lowered that do not shrink."""
_REFUSED: Mapping[Reason, Ending] = {
    Reason.NOT_FINITE: Ending(Status.DIVERGED, "Check that client's rows and the model."),
    Reason.IMPROPER: Ending(Status.IMPROPER, "Use more damping, or backtracking."),
    Reason.IMPROPER_STEP: Ending(Status.IMPROPER, "Lower it."),
    Reason.NO_MOMENTS: Ending(Status.IMPROPER, "Use more damping, or backtracking."),
    Reason.LOWER_FREE_ENERGY: Ending(Status.STALLED, "Use another start, or fewer solver steps."),
    **dict.fromkeys((Reason.INCOMPLETE_ROUND, Reason.LEFT_OUT), Ending(Status.STALLED, "Check the aggregation.")),
    **dict.fromkeys(
        (Reason.DEFICIT, Reason.CHANGE, Reason.DOMINANCE, Reason.PROMINENCE),
        Ending(Status.STALLED, "Widen the bounds on answers, or check the clients' rows."),
    ),
}
"""How a run ends in which everybody's answers are refused, and what helps."""


def _all_refused(state: State) -> Ending | None:
    """Ends a run in which everybody's last answer was refused, the server's own too, or before its first."""
    unheard = state.active & state.hosted & (state.versions == 0)
    if not set(np.flatnonzero(state.communicating | unheard).tolist()) <= state.refused.keys():
        return None
    k, refusal = next((k, refusal) for k, refusal in state.refused.items() if state.communicating[k])
    status, remedy = _REFUSED[refusal.reason]
    if refusal.reason is Reason.NOT_FINITE and state.versions[state.communicating].any():
        remedy = "Earlier steps have led too far. Use more damping, or another start."
    return Ending(status, f"No answer could be accepted: that of {state.names[k]} {refusal.sentence}. {remedy}")


class Stopping:
    """The stopping rule: a run has converged when every client's last answer lies within `tolerance` nats of q, and q
    is within a hundredth of a standard deviation of the fixed point, as far as its movements tell. Without a tolerance
    it never has.

    A falling free energy is what tells divergence, since precisions may stay positive; unless the aggregation is
    `guarded`, which undoes a fall. What it needs of the history it
    keeps, so that a step costs the same however long a run is.
    """

    def __init__(
        self,
        budget: Budget,
        tolerance: float | None,
        first: Evaluation,
        history: History,
        guarded: bool = False,
        tuned: tuple[str, float] | None = None,
        early: EarlyStopping | None = None,
    ) -> None:
        self.budget, self.tolerance, self.first, self.history = budget, tolerance, first.value, history
        self.guarded, self.tuned = guarded, tuned
        self.flatness = None if early is None else Flatness(early)
        self.low_since = np.inf
        """The round since which the free energy has been below the floor."""
        self.latest = self.best = first
        for row in history:
            self.hear(row)
            self.observe(row)

    def hear(self, row: Mapping[str, Any]) -> None:
        """Takes note of what clients report after a step, if all have answered."""
        if self.flatness is not None and "ell" in row:
            self.flatness.add(row["ell"], row["reporting"])

    def observe(self, row: Mapping[str, Any]) -> None:
        """Takes note of a row of the history."""
        if "free_energy" in row:
            self.latest = Evaluation(row["free_energy"], row.get("free_energy_error", 0.0))
            self.best = max(self.best, self.latest)
            below = not self.latest.value > self._floor
            self.low_since = min(self.low_since, row["rounds"]) if below else np.inf

    def ending(self, state: State) -> Ending | None:
        """How the run has ended, if it has."""
        return self._failed(state) or self._converged(state) or self._early() or self._spent(state) or self._full(state)

    def _failed(self, state: State) -> Ending | None:
        if not state.communicating.any():
            return Ending(Status.STALLED, "All clients have left. Let one join.")
        if state.refused and (ending := _all_refused(state)) is not None:
            return ending
        # a fall that is undone ends in the second round after it
        lasting = not self.guarded or state.answers / len(state.names) >= self.low_since + 2
        if len(self.history) and lasting and not self.latest.value > self._floor and not np.isnan(self.first):
            return Ending(Status.DIVERGED, f"The free energy diverged to {self.latest.value:.6g}. {_slower(state)}")
        if np.all(state.outcome[state.active] == Outcome.NO_MOMENTS):
            remedy = "Raise samples or points tenfold, or match rows one by one, with power EP."
            return Ending(Status.IMPROPER, f"No client found the moments of its tilted density. {remedy}")
        return None

    @property
    def _floor(self) -> float:
        """What no free energy falls to, in a run that goes well."""
        return self.first - 10 * (1 + abs(self.first))

    def _converged(self, state: State) -> Ending | None:
        if self.tolerance is None:
            return None
        if not (state.settled(self.tolerance) and (left := distance_left(state)) <= DISTANCE_LEFT):
            return None
        near = f"Every client's answer lies within {self.tolerance:g} nats of the posterior"
        said = f"{near}, which is about {left:.1g} standard deviations from its fixed point."
        gap = state.posterior.gap
        return (
            Ending(Status.CONVERGED, said)
            if gap is None
            else Ending(Status.NEAREST, f"{said} {_nearest(state, float(gap))}")
        )

    def _early(self) -> Ending | None:
        if self.flatness is None or not self.flatness.over:
            return None
        rule = self.flatness.rule
        flat = f"{rule.patience} times {rule.window} steps have not raised it by {rule.tolerance:g} nats"
        return Ending(Status.STOPPED_EARLY, f"The expected log-likelihood is flat: {flat}.")

    def _spent(self, state: State) -> Ending | None:
        if not self.budget.spent(state):
            return None
        if state.answers >= self.budget.passes:
            refused = sorted({name for _, name, _ in self.history.refusals})
            if refused:
                answered = f"what {', '.join(refused)} answered was refused"
                return Ending(Status.STALLED, f"The only pass is over, and {answered}.")
            return Ending(Status.COMPLETE, "The method's passes over all clients are complete.")
        best, latest = self.best.value, self.latest.value
        noise = _ERRORS * np.hypot(self.best.error, self.latest.error)
        if not self.guarded and best - latest > max((best - self.first) / 2, noise):
            fell = f"The free energy fell from {best:.6g} to {latest:.6g}."
            return Ending(Status.DIVERGED, f"{fell} {_slower(state)}")
        worst = state.worst_residual
        if state.hyper and np.isinf(worst):
            spent = "The budget is spent before every client answered for the current hyperparameters."
            return Ending(Status.BUDGET_SPENT, spent)
        nats = "nats (or half the squared hyperparameter gradient)" if state.hyper else "nats"
        spent = f"The budget is spent; the residual is {worst:.3g} {nats}."
        left = distance_left(state)
        far = f" At its present rate about {left:.2g} standard deviations are left: {self._more(state)}."
        if self.tolerance is not None and self.tolerance < worst < np.inf and left <= DISTANCE_LEFT:
            far = " Rounds end where they began, though clients do not agree. Use more damping, or fewer solver steps."
            return Ending(Status.BUDGET_SPENT, spent + far)
        return Ending(Status.BUDGET_SPENT, spent + far if DISTANCE_LEFT < left < np.inf else spent)

    def _full(self, state: State) -> Ending | None:
        if not state.posterior.full:
            return None
        kind = type(state.posterior).__name__
        return Ending(Status.BUDGET_SPENT, f"The {kind} has no room for another visit: begin with more `visits`.")

    def _more(self, state: State) -> str:
        """What to change where the budget is spent, and by how much."""
        needed, had = rounds_left(state), state.answers / len(state.names)
        if needed <= _PATIENCE * had:
            return f"allow about {needed:,.0f} more rounds"
        if self.tuned is None:
            return "allow many more rounds"
        name, value = self.tuned
        reported = [row.get("free_energy", row.get("reported_free_energy")) for row in self.history.rows[-_LATELY:]]
        known = np.array([value for value in reported if value is not None])
        climbs = len(known) > 1 and known[-1] - known[0] > np.abs(np.diff(known)).sum() / 2
        if name != "damping" and climbs:
            raised = value * min(needed / had, _PATIENCE)
            return f"the free energy still climbs, so raise {name} from {value:.2g} to about {raised:.1g}"
        return f"steps do not shrink, so lower {name} from {value:.2g} to about {value / _CALMER:.1g}"


def _nearest(state: State, gap: float) -> str:
    """What is returned in place of the posterior, and what its messages cost."""
    q = state.posterior
    found = f"Returned is the nearest {type(q.returned).__name__}, {gap:.3g} nats from it"
    return f"{found}; messages had {q.size():,} numbers, where its own have {q.returned.size():,}."


def _slower(state: State) -> str:
    """The remedy for a falling free energy."""
    return "Use more damping, or smaller hyperparameter steps." if state.hyper else "Use more damping."
