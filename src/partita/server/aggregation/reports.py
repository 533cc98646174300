"""What clients have said of the free energy, from which the server knows that of every posterior to first order."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from partita.families import Family
from partita.families.factor import Factor
from partita.io.wire import equal
from partita.numerics.stack import Stack
from partita.server.aggregation.base import FreeEnergy, divergence
from partita.server.aggregation.stacked import beside, expected, statistics, taken

__all__ = ["Reports", "Said"]

_ERRORS = 2.0
"""By how many standard errors a sampled free energy must fall to have fallen."""
_ROUNDING = 64.0
"""How many units in the last place the sum of the clients' expected log-likelihoods may be off."""


class Said(NamedTuple):
    """What a client has said, of which sums over all clients are needed.

    ell_k(q) ≈ c_k + E_q[log τ_k], where τ_k is the client's last undamped factor, and c_k such that it is exact at the
    posterior that the client was sent. A temperature multiplies the second term.
    """

    answer: Factor
    """τ_k; the factor held of a client that has left; 1 for one that has not answered."""
    constant: Float[np.ndarray, "..."]
    """c_k."""
    size: Float[np.ndarray, "..."]
    """|c_k|."""
    variance: Float[np.ndarray, "..."]
    """The square of the standard error of what the client expects."""
    error: Float[np.ndarray, "..."]
    """By how much its last report differs from what the one before had let expect; 0 for a first report."""
    first: Float[np.ndarray, "..."]
    """1 for a first report, whose error is infinite."""
    known: Float[np.ndarray, "..."]
    """1 for a client that has answered, and has not left."""
    gone: Float[np.ndarray, "..."]
    """1 for one that has left."""

    @classmethod
    def of(cls, answer: Factor, **numbers: Float[np.ndarray, " n"] | float) -> Self:
        """Reports of some clients, stacked; numbers that are not given are 0."""
        shape = answer.log_scale.shape
        return cls(answer, *(np.broadcast_to(np.asarray(numbers.get(name, 0.0)), shape) for name in cls._fields[1:]))


class Reports(NamedTuple):
    """What all clients have said."""

    rows: Stack[Said]

    @classmethod
    def none(cls, factors: Stack[Factor]) -> Self:
        """Before anybody has said anything."""
        one = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), factors.taken([0]))
        return cls(Stack.repeated(Said.of(one), len(factors)))

    def heard(self, clients: Sequence[int], answers: Factor, free_energy: FreeEnergy) -> tuple["Reports", float]:
        """The same after these undamped factors of some clients; and the sum of the errors of all that are stale."""
        said = [free_energy.reported[k] for k in clients]
        distinct = {id(report.posterior): report.posterior for report in said}
        sent = {each: statistics(posterior) for each, posterior in distinct.items()}
        before, groups = self.rows.taken(clients), [id(report.posterior) for report in said]
        earlier, now = np.empty(len(clients)), np.empty(len(clients))
        for each, expects in sent.items():
            own = [place for place, group in enumerate(groups) if group == each]
            earlier[own] = expected(taken(before.answer, own), expects)
            now[own] = expected(taken(answers, own), expects)
        ell = np.array([report.ell for report in said])
        variance = np.array([report.variance for report in said], float)
        current = np.array([report.current for report in said])
        temperature = free_energy.temperature
        with np.errstate(invalid="ignore"):
            errors = np.abs(ell - (before.constant + temperature * earlier))
        first = (before.known == 0) | ~np.isfinite(errors)
        constant = ell - temperature * now
        report = Said.of(
            answers,
            constant=constant,
            size=np.abs(constant),
            variance=variance,
            error=np.where(first, 0.0, errors),
            first=first.astype(float),
            known=1.0,
        )
        rows = self.rows.placed(clients, report)
        return Reports(rows), _stale(rows, report, current)

    def without(self, inactive: Bool[np.ndarray, " m"], factors: Stack[Factor]) -> "Reports":
        """The same where clients have left: the factors that are held of them stand in for their rows."""
        sums = self.rows.summed()
        if not inactive.any() and not sums.gone:
            return self
        gone = np.asarray(self.rows.stacked().gone) > 0
        back, absent = np.flatnonzero(gone & ~inactive).tolist(), np.flatnonzero(inactive).tolist()
        rows = self.rows
        if back:
            nothing = jax.tree.map(np.zeros_like, rows.taken(back).answer)
            rows = rows.placed(back, Said.of(nothing))
        if absent:
            there, held = rows.taken(absent), factors.taken(absent)
            if not gone[absent].all() or not equal(there.answer, held):
                rows = rows.placed(absent, Said.of(held, gone=1.0))
        return Reports(rows)

    def known(self) -> Bool[np.ndarray, " m"]:
        """Which clients' rows are known to the free energy."""
        return np.asarray(self.rows.stacked().known) > 0

    def of_the_same(self, others: "Reports") -> bool:
        """Whether the free energies are those of the same clients."""
        mine, theirs = self.rows.summed(), others.rows.summed()
        if mine.known != theirs.known or mine.gone != theirs.gone:
            return False
        return not mine.gone or np.array_equal(self.known(), others.known())

    def answers(self, held: Factor) -> Factor:
        """τ_k of all clients, stacked; the factor held of one that has not answered."""
        rows = self.rows.stacked()
        said = rows.known + rows.gone
        return jax.tree.map(lambda own, other: np.where(beside(said, own) > 0, own, other), rows.answer, held)

    def free_energy(self, q: Family, free_energy: FreeEnergy, lag: float = 0.0) -> tuple[float, float]:
        """F(q) by the last reports, and by how much it may be off: by rounding, by noise, and by what is stale.

        Where all reports are of q itself they are summed as they are: factors of natural gradients may be so large that
        nothing is left of c_k + E_q[log τ_k] but rounding.
        """
        sums = self.rows.summed()
        apart = float(divergence(q, free_energy.prior))
        current = {k: report.ell for k, report in free_energy.reported.items() if report.current}
        # a client whose answer was refused reports as well, and need not be among those that are known
        if len(current) == sums.known and not sums.gone and self.known()[list(current)].all():
            of_this = np.array(list(current.values()))
            said, size = float(of_this.sum()), float(np.abs(of_this).sum())
        else:
            moved = free_energy.temperature * float(expected(sums.answer, statistics(q)))
            said, size = float(sums.constant) + moved, float(sums.size) + abs(moved)
        value = said - free_energy.temperature * apart
        eps = float(jnp.finfo(jax.tree.leaves(q)[0].dtype).eps)
        rounding = _ROUNDING * eps * (1 + size + apart)
        noise = _ERRORS * float(np.sqrt(sums.variance / 2))
        return (float(value), float(max(rounding, noise) + lag)) if np.isfinite(value) else (-np.inf, 0.0)


def _stale(rows: Stack[Said], answered: Said, current: Bool[np.ndarray, " n"]) -> float:
    """The sum of the errors of all reports on posteriors before the present one."""
    total, fresh = rows.summed(), np.flatnonzero(current)
    if len(fresh) == total.known:
        return 0.0
    left = float(total.error - answered.error[fresh].sum())
    return np.inf if total.first > answered.first[fresh].sum() else max(left, 0.0)
