"""The product rule with a damping ρ that follows the free energy which clients report with their answers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.families import Family, inner
from partita.families.factor import Factor
from partita.inputs import check_fraction
from partita.numerics.compiled import Compiled
from partita.numerics.stack import Stack, stacked
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, refused
from partita.server.aggregation.reports import Reports
from partita.server.aggregation.stacked import array, plus, summed, times
from partita.server.refusal import Reason

__all__ = ["Adaptive"]

_GROWTH = 1.5
"""By how much ρ grows at most in a round."""
_SHRINKAGE = 0.5
"""To what part ρ goes at most where the free energy has not fallen, and at least where it has."""
_FURTHEST = 0.125
"""To what part ρ goes at most after a fall."""
_CEILING = 0.7
"""What part of a ρ that lowered the free energy is not exceeded afterwards."""
_RECOVERY = 1.05
"""By how much that ceiling grows with every round in which the free energy does not fall."""
_ASK_AGAIN = 4
"""After how many returns in a row the verified posterior itself is sent again."""
_RETURNS = 12
"""After how many returns a run has stalled."""
_REACH = 1e4
"""How long a step is at most in the Fisher metric of q, for each natural parameter (root mean square)."""
_HALVINGS = 12
"""How many times a step is halved at most that would make the posterior improper."""


class Adaptive(Aggregation):
    """t_k ← t_k · Δ_k^ρ · v_k^β and q = p · Π t_k, with a damping ρ that grows while the free energy rises.

    An answer says what its client expects of its rows under the posterior that it was sent. So the free energy of that
    posterior, F = Σ_k ell_k − KL(q ‖ p), is known when all answers are in, without another message. If it has not
    fallen, the posterior is *verified*: the next step begins there. If it has, the answers are set aside, ρ shrinks to
    a half or less, and the step from the last verified posterior is taken again, with the answers that belong to it. A
    run ends at a verified posterior (`final`), so that it never ends lower than it began.

    In rounds of all clients ρ follows from the last two rounds: how much the change that all ask for together fell
    along the step between them tells which ρ would have left nothing of it (`_seen`). So ρ grows while the same is
    asked for again, and shrinks where the opposite is, which is a round before F falls: many clients of a mean-field
    network bear a tenth of the damping that a generalised linear model does, and one rule finds both. For conjugate
    models it finds 1.

    Rounds of all clients have momentum, v_k being the last change of t_k: β is the larger of two. One is Nesterov's,
    (n − 1)/(n + 2) in the n-th round without a fall (restarted as by O'Donoghue and Candès 2015), times the part of the
    last change that is asked for again: much along directions in which mean-field runs crawl, and none where a step
    arrives or swings. The other, 1 − √ρ, is that of a quadratic whose stiffest direction bears ρ (Polyak 1964): none
    where whole answers fit, and much where many clients answer what a mean field cannot see together.

    Where some answers are older than others, since clients are lost, drawn at random or asynchronous, ell_k is that of
    the client's last report and changes with q as its undamped factor does (`Reports`): exact at the posterior that
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
        complete = len(clients) == whole
        if below >= whole:
            part = _SHRINKAGE
            if complete:
                verified = memory.verified
                seen = _seen(verified.posterior, iterate.posterior, verified.change, summed(changes))
                part = float(np.clip(seen.best / float(memory.damping), _FURTHEST, _SHRINKAGE))
            return self._returned(memory, free_energy.prior, deltas, part)
        damping, ceiling, verified = float(memory.damping), float(memory.ceiling), memory.verified
        rising, returns = int(memory.rising), int(memory.returns)
        push = None
        if not fallen:
            change = summed(changes)
            growth, again, on = _GROWTH ** (answers / whole), 0.0, not other and complete
            if on:
                seen, rising = _seen(verified.posterior, iterate.posterior, verified.change, change), rising + 1
                again, growth = float(seen.again), float(np.clip(seen.best / damping, _SHRINKAGE, _GROWTH))
            if not other and np.isfinite(error):
                ceiling = min(ceiling * _RECOVERY ** (answers / whole), self.largest)
                damping = min(damping * growth, ceiling)
            if on:
                moved = plus(own, verified.factors.taken(clients), -1.0)
                push = times(moved, max(np.clip(again, 0, 1) * (rising - 1) / (rising + 2), 1 - np.sqrt(damping)))
            # a posterior that was only asked for again has not risen
            returns = returns if np.isneginf(verified.at_least) else 0
            at_least = value - error if other else max(value - error, float(verified.at_least))
            verified = _Verified(array(iterate.posterior), held, reports, change, np.asarray(at_least))
        kept = _Memory(verified, reports, *map(np.asarray, (damping, ceiling, below, rising, returns)))
        dampings = np.where(_untouched(own), self._first(iterate), damping)
        step = _Step(free_energy.prior, clients, own, changes, dampings, push)
        return _stepped(iterate._replace(memory=kept), step, deltas)

    def lost(self, iterate: Iterate, prior: Family) -> Aggregated:
        """The free energy of a posterior to which nobody has a finite answer has fallen."""
        if np.isneginf(iterate.memory.verified.at_least):
            return super().lost(iterate, prior)
        return self._returned(iterate.memory, prior, {}, _FURTHEST)

    def _returned(self, memory: "_Memory", prior: Family, deltas: Mapping[int, Factor], part: float) -> Aggregated:
        """The step from the last verified posterior, taken again with a part of ρ."""
        failed, verified, returns = float(memory.damping), memory.verified, int(memory.returns) + 1
        damping = part * failed
        numbers = (damping, _CEILING * failed, 0, 0, returns)
        kept = _Memory(verified, verified.reports, *map(np.asarray, numbers))
        back = Iterate(verified.posterior, verified.factors, kept)
        if returns > _RETURNS:
            sentence = f"would lower the free energy even with damping {failed:.2g}"
            return refused(back, deltas, Reason.LOWER_FREE_ENERGY, sentence)
        if returns % _ASK_AGAIN == 0:
            unknown = verified._replace(at_least=np.asarray(-np.inf))
            return Aggregated(back._replace(memory=kept._replace(verified=unknown)), damping, 0, {}, returned=True)
        everybody, held = range(len(verified.factors)), verified.factors.stacked()
        changes = plus(verified.reports.answers(held), held, -1.0)
        dampings = np.full(len(everybody), damping)
        return _stepped(back, _Step(prior, everybody, held, changes, dampings), deltas)._replace(returned=True)

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
        reports = Reports.none(iterate.factors)
        posterior = array(iterate.posterior)
        verified = _Verified(posterior, iterate.factors, reports, posterior.one(), np.asarray(-np.inf))
        damping = min(self._first(iterate), self.largest)
        return _Memory(verified, reports, *map(np.asarray, (damping, self.largest, 0, 0, 0)))

    def _first(self, iterate: Iterate) -> float:
        """The damping to begin with; a single client has nobody who reacts at the same time."""
        return self.first if len(iterate.factors) > 1 else 1.0


class _Verified(NamedTuple):
    """The last posterior whose free energy is known not to have fallen."""

    posterior: Family
    factors: Stack[Factor]
    """t_k of every client."""
    reports: Reports
    change: Family
    """The product of the changes that were answered to it."""
    at_least: Float[np.ndarray, ""]
    """What the free energy has reached for certain; −∞ before it is known."""


class _Memory(NamedTuple):
    """The memory of `Adaptive`."""

    verified: _Verified
    reports: Reports
    damping: Float[np.ndarray, ""]
    ceiling: Float[np.ndarray, ""]
    """The largest ρ at present."""
    below: Int[np.ndarray, ""]
    """How many answers have come in since the free energy was last as high as the verified one."""
    rising: Int[np.ndarray, ""]
    """How many rounds of all clients have not been followed by a fall since the last return."""
    returns: Int[np.ndarray, ""]
    """How many steps were taken again since one from the verified posterior has risen."""


class _Step(NamedTuple):
    """What some clients' factors are to be multiplied by."""

    prior: Family
    clients: Sequence[int]
    held: Factor
    """Their factors, stacked."""
    changes: Factor
    """Their answers Δ_k."""
    dampings: Float[np.ndarray, " n"]
    push: Factor | None = None
    """v_k^β."""


def _stepped(iterate: Iterate, step: _Step, deltas: Mapping[int, Factor]) -> Aggregated:
    """A step from an iterate; it is halved, and has no momentum, until the posterior is proper.

    One that is far too long is shortened first: a natural gradient of counts under a wide prior may be e⁴⁰ long, and
    precision of that order would take half a hundred rounds to shed. If no step is proper, the answers `deltas` are
    refused.
    """
    whole = summed(times(step.changes, step.dampings))
    length = float(_length(iterate.posterior, whole))
    allowed = _REACH * np.sqrt(whole.size())
    dampings = step.dampings * (allowed / length if allowed < length < np.inf else 1.0)
    for halvings in range(_HALVINGS):
        part = dampings * 0.5**halvings
        moved = times(step.changes, part)
        if step.push is not None and not halvings:
            moved = plus(moved, step.push)
        factors = iterate.factors.placed(step.clients, plus(step.held, moved))
        posterior = _product(step.prior, factors)
        if _proper(posterior):
            return Aggregated(iterate._replace(posterior=posterior, factors=factors), float(part.min()), 0, {})
    sentence = f"would make the posterior improper even with damping {part.min():.2g}"
    return refused(iterate, deltas, Reason.IMPROPER, sentence)


def _product(prior: Family, factors: Stack[Factor]) -> Family:
    """p · Π t_k, anew: changes of the posterior would leave the rounding of the largest factors in it for good."""
    total = factors.summed().natural
    return jax.tree.map(lambda own, leaf: jnp.asarray(own + leaf.astype(own.dtype)), prior, total)


def _untouched(factors: Factor) -> Bool[np.ndarray, " m"]:
    """Which factors are still 1."""
    leaves = jax.tree.leaves(factors.natural)
    return np.all([~leaf.reshape(len(leaf), -1).any(-1) for leaf in leaves], axis=0)


@Compiled
def _proper(q: Family) -> Bool[Array, ""]:
    return q.is_proper()


@Compiled
def _length(q: Family, change: Family) -> Float[Array, ""]:
    """The length of a change in the Fisher metric of q."""
    _, image = jax.jvp(jax.grad(lambda member: member.log_normaliser()), (q,), (change,))
    return jnp.sqrt(inner(image, change))


class _Seen(NamedTuple):
    """What two rounds of all clients in a row tell."""

    again: Float[Array, ""]
    """What part of the first change is asked for again."""
    best: Float[Array, ""]
    """The ρ that would have left nothing of it, were answers linear; ∞ where that is not known."""


@Compiled
def _seen(before: Family, after: Family, change: Family, change_after: Family) -> _Seen:
    """The change that is asked for at a posterior, beside that at the next one, in the Fisher metric of the latter.

    The step s = η' − η holds damped answers and momentum. Along it answers c fell by c − c' = H s, so that
    ρ = ⟨s, s⟩ / ⟨s, H s⟩ (Barzilai and Borwein 1988).
    """
    step = after / before

    def product(first: Family, second: Family) -> Float[Array, ""]:
        _, image = jax.jvp(jax.grad(lambda member: member.log_normaliser()), (after,), (first,))
        return inner(image, second)

    whole, fell = product(change, change), product(step, change / change_after)
    moved = product(step, step)
    again = product(change, change_after) / jnp.where(whole > 0, whole, 1)
    best = moved / jnp.where(fell > 0, fell, 1)
    known = (fell > 0) & (moved > 0) & jnp.isfinite(best)
    return _Seen(jnp.where((whole > 0) & jnp.isfinite(again), again, 0), jnp.where(known, best, jnp.inf))
