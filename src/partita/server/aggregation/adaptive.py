"""The product rule with a damping ρ that follows the free energy which clients report with their answers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.families import Family
from partita.families.factor import Factor
from partita.inputs import check_fraction
from partita.io.wire import equal
from partita.numerics.compiled import Compiled
from partita.numerics.stack import Stack, stacked
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, divergence, refused
from partita.server.aggregation.stacked import array, beside, expected, plus, statistics, summed, taken
from partita.server.refusal import Reason

__all__ = ["Adaptive"]

_GROWTH = 1.5
"""By how much ρ grows at most in a round."""
_CEILING = 0.7
"""What part of a ρ that lowered the free energy is not exceeded afterwards."""
_RECOVERY = 1.05
"""By how much that ceiling grows with every round in which the free energy does not fall."""
_ASK_AGAIN = 4
"""After how many returns in a row the verified posterior itself is sent again."""
_RETURNS = 12
"""After how many returns a run has stalled."""
_HALVINGS = 12
"""How many times a step is halved at most that would make the posterior improper."""
_ERRORS = 2.0
"""By how many standard errors a sampled free energy must fall to have fallen."""
_ROUNDING = 64.0
"""How many units in the last place the sum of the clients' expected log-likelihoods may be off."""


class Adaptive(Aggregation):
    """t_k ← t_k · Δ_k^ρ · v_k^β and q = p · Π t_k, with a damping ρ that grows while the free energy rises.

    An answer says what its client expects of its rows under the posterior that it was sent. So the free energy of that
    posterior, F = Σ_k ell_k − KL(q ‖ p), is known when all answers are in, without another message. If it has not
    fallen, the posterior is *verified*: the next step begins there. If it has, the answers are set aside, ρ is halved,
    and the step from the last verified posterior is taken again, with the answers that belong to it. A run ends at a
    verified posterior (`final`), so that it never ends lower than it began.

    Rounds of all clients have Nesterov's momentum: v_k is the last change of t_k, and β = n/(n + 3) after n rounds
    without a fall (restarted as by O'Donoghue and Candès 2015), times the part of the last round's change that this
    round's answers ask for again. So there is none where a step arrives, as with full covariance, or swings, and much
    along directions in which mean-field runs crawl.

    Where some answers are older than others, since clients are lost, drawn at random or asynchronous, ell_k is that of
    the client's last report and changes with q as its undamped factor does (`_Reports`): exact at the posterior that
    the client was sent, and to first order at the fixed point. How much reports differed from what the ones before had
    let expect is then an error of the free energy. A fall counts that is larger than all errors, once as many answers
    as there are clients have come in since.
    """

    first: float = 0.5
    """The damping of a client's first answer, and at first that of all others."""
    largest: float = 1.0

    def __check_init__(self) -> None:
        check_fraction("first damping", self.first)
        check_fraction("largest damping", self.largest)

    @property
    def keeps_product(self) -> bool:
        return True

    @property
    def guarded(self) -> bool:
        return True

    def init(self, prior: Family, clients: int) -> Iterate:
        iterate = super().init(prior, clients)
        return iterate._replace(memory=self._begun(iterate))

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        memory: _Memory = iterate.memory
        clients, held, everybody = sorted(deltas), iterate.factors, len(iterate.factors)
        own, changes = held.taken(clients), stacked(deltas[k] for k in clients)
        reports, lag = memory.reports.heard(clients, plus(own, changes), free_energy)
        reports = reports.without(free_energy.inactive, held)
        value, error = reports.free_energy(iterate.posterior, free_energy, lag)
        # another sum is climbed once a client is heard for the first time, or has left
        other = not reports.of_the_same(memory.reports)
        answers, whole = len(free_energy.reported), everybody - int(free_energy.inactive.sum())
        fallen = not other and value + error < memory.verified.at_least
        below = int(memory.below) + answers if fallen else 0
        if below >= whole:
            return self._returned(memory, deltas)
        damping, ceiling, verified = float(memory.damping), float(memory.ceiling), memory.verified
        rising, returns = int(memory.rising), int(memory.returns)
        carried, momentum = None, 0.0
        if not fallen:
            change = summed(changes)
            if not other and np.isfinite(error):
                ceiling = min(ceiling * _RECOVERY ** (answers / whole), self.largest)
                damping = min(damping * _GROWTH ** (answers / whole), ceiling)
            if not other and len(clients) == whole:
                carried = plus(own, verified.factors.taken(clients), -1.0)
                left = float(np.clip(_left(iterate.posterior, verified.change, change), 0, 1))
                rising, momentum = rising + 1, left * rising / (rising + 3)
            # a posterior that was only asked for again has not risen
            returns = returns if np.isneginf(verified.at_least) else 0
            at_least = value - error if other else max(value - error, float(verified.at_least))
            verified = _Verified(array(iterate.posterior), held, reports, change, np.asarray(at_least))
        kept = _Memory(verified, reports, *map(np.asarray, (damping, ceiling, below, rising, returns)))
        dampings = np.where(_untouched(own), self._first(iterate), damping)
        return _stepped(iterate._replace(memory=kept), deltas, clients, own, changes, dampings, carried, momentum)

    def _returned(self, memory: "_Memory", deltas: Mapping[int, Factor]) -> Aggregated:
        """The step from the last verified posterior, taken again with half of ρ."""
        failed, verified, returns = float(memory.damping), memory.verified, int(memory.returns) + 1
        numbers = (failed / 2, _CEILING * failed, 0, 0, returns)
        kept = _Memory(verified, verified.reports, *map(np.asarray, numbers))
        back = Iterate(verified.posterior, verified.factors, kept)
        if returns > _RETURNS:
            sentence = f"would lower the free energy even with damping {failed:.2g}"
            return refused(back, deltas, Reason.LOWER_FREE_ENERGY, sentence)
        if returns % _ASK_AGAIN == 0:
            unknown = verified._replace(at_least=np.asarray(-np.inf))
            return Aggregated(back._replace(memory=kept._replace(verified=unknown)), failed / 2, 0, {}, returned=True)
        everybody, held = range(len(verified.factors)), verified.factors.stacked()
        changes = plus(verified.reports.answers(held), held, -1.0)
        dampings = np.full(len(everybody), failed / 2)
        stepped = _stepped(back, deltas, everybody, held, changes, dampings, None, 0.0)
        return stepped._replace(returned=True)

    def final(self, iterate: Iterate, free_energy: FreeEnergy | None) -> Iterate:
        """The last verified posterior; or the newest, if its free energy can be asked for and has not fallen."""
        verified: _Verified = iterate.memory.verified
        if np.isneginf(verified.at_least):
            return iterate
        known = free_energy is not None and verified.reports.known()[~free_energy.inactive].all()
        if free_energy is not None and known and free_energy(iterate.posterior) >= verified.at_least:
            return iterate
        return iterate._replace(posterior=verified.posterior, factors=verified.factors)

    def added(self, iterate: Iterate) -> Iterate:
        added = super().added(iterate)
        return added._replace(memory=self._begun(added))

    def divided(self, iterate: Iterate, client: int) -> Iterate:
        rest = super().divided(iterate, client)
        return rest._replace(memory=self._begun(rest))

    def resumed(self, iterate: Iterate, heard: Bool[np.ndarray, " m"], absent: Bool[np.ndarray, " m"]) -> PyTree:
        return self._begun(iterate)

    def continued(self, iterate: Iterate) -> PyTree:
        """Rows, model or temperature may be others: what clients reported does not count, and ρ begins anew."""
        return self._begun(iterate)

    def remembered(self, memory: "_Memory", change: Family) -> "_Memory":
        """With other hyperparameters another free energy is climbed, of which nothing is known yet."""
        posterior, damping = memory.verified.posterior * change, min(float(memory.damping), self.first)
        verified = memory.verified._replace(posterior=posterior, at_least=np.asarray(-np.inf))
        return memory._replace(verified=verified, damping=np.asarray(damping))

    def _begun(self, iterate: Iterate) -> "_Memory":
        """The memory before the first answers from an iterate on."""
        reports = _Reports.none(iterate.factors)
        posterior = array(iterate.posterior)
        verified = _Verified(posterior, iterate.factors, reports, posterior.one(), np.asarray(-np.inf))
        damping = min(self._first(iterate), self.largest)
        return _Memory(verified, reports, *map(np.asarray, (damping, self.largest, 0, 0, 0)))

    def _first(self, iterate: Iterate) -> float:
        """The damping to begin with; a single client has nobody who reacts at the same time."""
        return self.first if len(iterate.factors) > 1 else 1.0


class _Report(NamedTuple):
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


class _Reports(NamedTuple):
    """What all clients have said."""

    rows: Stack[_Report]

    @classmethod
    def none(cls, factors: Stack[Factor]) -> Self:
        """Before anybody has said anything."""
        one = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), factors.taken([0]))
        return cls(Stack.repeated(_Report.of(one), len(factors)))

    def heard(self, clients: Sequence[int], answers: Factor, free_energy: FreeEnergy) -> tuple["_Reports", float]:
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
        report = _Report.of(
            answers,
            constant=constant,
            size=np.abs(constant),
            variance=variance,
            error=np.where(first, 0.0, errors),
            first=first.astype(float),
            known=1.0,
        )
        rows = self.rows.placed(clients, report)
        return _Reports(rows), _stale(rows, report, current)

    def without(self, inactive: Bool[np.ndarray, " m"], factors: Stack[Factor]) -> "_Reports":
        """The same where clients have left: the factors that are held of them stand in for their rows."""
        sums = self.rows.summed()
        if not inactive.any() and not sums.gone:
            return self
        gone = np.asarray(self.rows.stacked().gone) > 0
        back, absent = np.flatnonzero(gone & ~inactive).tolist(), np.flatnonzero(inactive).tolist()
        rows = self.rows
        if back:
            nothing = jax.tree.map(np.zeros_like, rows.taken(back).answer)
            rows = rows.placed(back, _Report.of(nothing))
        if absent:
            there, held = rows.taken(absent), factors.taken(absent)
            if not gone[absent].all() or not equal(there.answer, held):
                rows = rows.placed(absent, _Report.of(held, gone=1.0))
        return _Reports(rows)

    def known(self) -> Bool[np.ndarray, " m"]:
        """Which clients' rows are known to the free energy."""
        return np.asarray(self.rows.stacked().known) > 0

    def of_the_same(self, others: "_Reports") -> bool:
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
        """F(q) by the last reports, and by how much it may be off: by rounding, by noise, and by what is stale."""
        sums = self.rows.summed()
        said = float(expected(sums.answer, statistics(q)))
        apart = float(divergence(q, free_energy.prior))
        value = sums.constant + free_energy.temperature * (said - apart)
        eps = float(jnp.finfo(jax.tree.leaves(q)[0].dtype).eps)
        rounding = _ROUNDING * eps * (1 + sums.size + abs(said) + apart)
        noise = _ERRORS * np.sqrt(sums.variance / 2)
        return (float(value), float(max(rounding, noise) + lag)) if np.isfinite(value) else (-np.inf, 0.0)


def _stale(rows: Stack[_Report], answered: _Report, current: Bool[np.ndarray, " n"]) -> float:
    """The sum of the errors of all reports on posteriors before the present one."""
    total, fresh = rows.summed(), np.flatnonzero(current)
    if len(fresh) == total.known:
        return 0.0
    left = float(total.error - answered.error[fresh].sum())
    return np.inf if total.first > answered.first[fresh].sum() else max(left, 0.0)


class _Verified(NamedTuple):
    """The last posterior whose free energy is known not to have fallen."""

    posterior: Family
    factors: Stack[Factor]
    """t_k of every client."""
    reports: _Reports
    change: Family
    """The product of the changes that were answered to it."""
    at_least: Float[np.ndarray, ""]
    """What the free energy has reached for certain; −∞ before it is known."""


class _Memory(NamedTuple):
    """The memory of `Adaptive`."""

    verified: _Verified
    reports: _Reports
    damping: Float[np.ndarray, ""]
    ceiling: Float[np.ndarray, ""]
    """The largest ρ at present."""
    below: Int[np.ndarray, ""]
    """How many answers have come in since the free energy was last as high as the verified one."""
    rising: Int[np.ndarray, ""]
    """How many rounds of all clients have not been followed by a fall since the last return."""
    returns: Int[np.ndarray, ""]
    """How many steps were taken again since one from the verified posterior has risen."""


def _stepped(
    iterate: Iterate,
    deltas: Mapping[int, Factor],
    clients: Sequence[int],
    held: Factor,
    changes: Factor,
    dampings: Float[np.ndarray, " n"],
    carried: Factor | None,
    momentum: float,
) -> Aggregated:
    """The step of some clients from an iterate; it is halved, and has no momentum, until the posterior is proper.

    `held` are their factors there. If it never is proper, the answers `deltas` are refused.
    """
    for halvings in range(_HALVINGS):
        part = dampings * 0.5**halvings
        step = jax.tree.map(lambda leaf, part=part: leaf * beside(part, leaf), changes)
        if carried is not None and not halvings:
            step = plus(step, carried, momentum)
        posterior = iterate.posterior * summed(step)
        if _proper(posterior):
            factors = iterate.factors.placed(clients, plus(held, step))
            return Aggregated(iterate._replace(posterior=posterior, factors=factors), float(part.min()), 0, {})
    sentence = f"would make the posterior improper even with damping {part.min():.2g}"
    return refused(iterate, deltas, Reason.IMPROPER, sentence)


def _untouched(factors: Factor) -> Bool[np.ndarray, " m"]:
    """Which factors are still 1."""
    leaves = jax.tree.leaves(factors.natural)
    return np.all([~leaf.reshape(len(leaf), -1).any(-1) for leaf in leaves], axis=0)


@Compiled
def _proper(q: Family) -> Bool[Array, ""]:
    return q.is_proper()


@Compiled
def _left(q: Family, before: Family, now: Family) -> Float[Array, ""]:
    """What part of a change is asked for again: ⟨now, before⟩ / ⟨before, before⟩, in the Fisher metric of q."""
    _, image = jax.jvp(jax.grad(lambda member: member.log_normaliser()), (q,), (before,))
    pairs = [zip(jax.tree.leaves(image), jax.tree.leaves(change), strict=True) for change in (now, before)]
    again, whole = (jnp.stack([jnp.vdot(*pair) for pair in each]).sum() for each in pairs)
    return jnp.where(whole > 0, again / whole, 0)
