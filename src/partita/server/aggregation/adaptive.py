"""The product rule with a damping ρ that follows the free energy which clients report with their answers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.families import Family
from partita.families.factor import Factor
from partita.inputs import check_fraction
from partita.numerics.compiled import Compiled
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, refused
from partita.server.aggregation.stacked import (
    array,
    beside,
    expected,
    placed,
    plus,
    rows,
    stacked,
    statistics,
    summed,
    taken,
)
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
        clients, everybody = sorted(deltas), range(len(iterate.factors))
        held = stacked(iterate.factors[k] for k in everybody)
        changes = stacked(deltas[k] for k in clients)
        reports = memory.reports.heard(clients, plus(taken(held, clients), changes), free_energy).without(
            free_energy.inactive, held
        )
        value, error = reports.free_energy(iterate.posterior, free_energy)
        # another sum is climbed once a client is heard for the first time, or has left
        other = not np.array_equal(np.isnan(reports.constants), np.isnan(memory.reports.constants))
        answers, whole = len(free_energy.reported), len(everybody) - int(free_energy.inactive.sum())
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
                carried = taken(plus(held, verified.factors, -1.0), clients)
                left = float(np.clip(_left(iterate.posterior, verified.change, change), 0, 1))
                rising, momentum = rising + 1, left * rising / (rising + 3)
            # a posterior that was only asked for again has not risen
            returns = returns if np.isneginf(verified.at_least) else 0
            at_least = value - error if other else max(value - error, float(verified.at_least))
            verified = _Verified(array(iterate.posterior), held, reports, change, np.asarray(at_least))
        kept = _Memory(verified, reports, *map(np.asarray, (damping, ceiling, below, rising, returns)))
        dampings = np.where(_untouched(held)[clients], self._first(iterate), damping)
        own = taken(held, clients)
        return _stepped(iterate._replace(memory=kept), deltas, clients, own, changes, dampings, carried, momentum)

    def _returned(self, memory: "_Memory", deltas: Mapping[int, Factor]) -> Aggregated:
        """The step from the last verified posterior, taken again with half of ρ."""
        failed, verified, returns = float(memory.damping), memory.verified, int(memory.returns) + 1
        numbers = (failed / 2, _CEILING * failed, 0, 0, returns)
        kept = _Memory(verified, verified.reports, *map(np.asarray, numbers))
        everybody = range(len(verified.reports.constants))
        back = Iterate(verified.posterior, rows(everybody, verified.factors), kept)
        if returns > _RETURNS:
            sentence = f"would lower the free energy even with damping {failed:.2g}"
            return refused(back, deltas, Reason.LOWER_FREE_ENERGY, sentence)
        if returns % _ASK_AGAIN == 0:
            unknown = verified._replace(at_least=np.asarray(-np.inf))
            return Aggregated(back._replace(memory=kept._replace(verified=unknown)), failed / 2, 0, {}, returned=True)
        changes = plus(verified.reports.answers, verified.factors, -1.0)
        dampings = np.full(len(everybody), failed / 2)
        stepped = _stepped(back, deltas, everybody, verified.factors, changes, dampings, None, 0.0)
        return stepped._replace(returned=True)

    def final(self, iterate: Iterate, free_energy: FreeEnergy | None) -> Iterate:
        """The last verified posterior; or the newest, if its free energy can be asked for and has not fallen."""
        verified: _Verified = iterate.memory.verified
        if np.isneginf(verified.at_least):
            return iterate
        if free_energy is not None:
            comparable = not np.isnan(verified.reports.constants[~free_energy.inactive]).any()
            if comparable and free_energy(iterate.posterior) >= verified.at_least:
                return iterate
        factors = rows(range(len(iterate.factors)), verified.factors)
        return iterate._replace(posterior=verified.posterior, factors=factors)

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
        clients = len(iterate.factors)
        held, unknown, none = (
            stacked(iterate.factors[k] for k in range(clients)),
            np.full(clients, np.nan),
            np.zeros(clients),
        )
        reports = _Reports(held, unknown, none, none, none.astype(bool))
        posterior = array(iterate.posterior)
        verified = _Verified(posterior, held, reports, posterior.one(), np.asarray(-np.inf))
        damping = min(self._first(iterate), self.largest)
        return _Memory(verified, reports, *map(np.asarray, (damping, self.largest, 0, 0, 0)))

    def _first(self, iterate: Iterate) -> float:
        """The damping to begin with; a single client has nobody who reacts at the same time."""
        return self.first if len(iterate.factors) > 1 else 1.0


class _Reports(NamedTuple):
    """What clients have said: the last undamped factors, and what they expect of their rows.

    ell_k(q) ≈ c_k + E_q[log τ_k], where τ_k is the client's last undamped factor, and c_k such that it is exact at the
    posterior that the client was sent. A temperature multiplies the second term.
    """

    answers: Factor
    """τ_k, an entry a client; the factor held of a client that has not answered."""
    constants: Float[np.ndarray, " m"]
    """c_k; NaN for a client that has not answered."""
    variances: Float[np.ndarray, " m"]
    """The square of the standard error of what the client expects."""
    errors: Float[np.ndarray, " m"]
    """By how much its last report differs from what the one before had let expect; infinite for a first report."""
    stale: Bool[np.ndarray, " m"]
    """Whether the posterior has changed since it was sent to the client."""

    def heard(self, clients: Sequence[int], answers: Factor, free_energy: FreeEnergy) -> "_Reports":
        """The same after these undamped factors of some clients."""
        said = [free_energy.reported[k] for k in clients]
        sent = {id(report.posterior): statistics(report.posterior) for report in said}
        earlier, now = np.empty(len(clients)), np.empty(len(clients))
        for place, (k, report) in enumerate(zip(clients, said, strict=True)):
            earlier[place] = expected(taken(self.answers, k), sent[id(report.posterior)])
            now[place] = expected(taken(answers, place), sent[id(report.posterior)])
        ell = np.array([report.ell for report in said])
        constants, variances, errors = (column.copy() for column in (self.constants, self.variances, self.errors))
        errors[clients] = [
            abs(value - before) if np.isfinite(before) else np.inf
            for value, before in zip(ell, constants[clients] + free_energy.temperature * earlier, strict=True)
        ]
        constants[clients], stale = ell - free_energy.temperature * now, np.ones_like(self.stale)
        variances[clients], stale[clients] = zip(*((each.variance, not each.current) for each in said), strict=True)
        return _Reports(placed(self.answers, clients, answers), constants, variances, errors, stale)

    def without(self, inactive: Bool[np.ndarray, " m"], factors: Factor) -> "_Reports":
        """The same where clients have left: the factors that are held of them stand in for their rows."""
        if not inactive.any():
            return self
        gone = np.flatnonzero(inactive).tolist()
        answers = placed(self.answers, gone, taken(factors, gone))
        return self._replace(answers=answers, constants=np.where(inactive, np.nan, self.constants))

    def free_energy(self, q: Family, free_energy: FreeEnergy) -> tuple[float, float]:
        """F(q) by the last reports, and by how much it may be off: by rounding, by noise, and by what is stale."""
        known = ~np.isnan(self.constants)
        said = float(expected(self.answers, statistics(q))[known | free_energy.inactive].sum())
        apart = float(_divergence(q, free_energy.prior))
        value = self.constants[known].sum() + free_energy.temperature * (said - apart)
        eps = float(jnp.finfo(jax.tree.leaves(q)[0].dtype).eps)
        rounding = _ROUNDING * eps * (1 + np.abs(self.constants[known]).sum() + abs(said) + apart)
        noise = _ERRORS * np.sqrt(self.variances[known].sum() / 2)
        lag = self.errors[known & self.stale].sum()
        return (float(value), float(max(rounding, noise) + lag)) if np.isfinite(value) else (-np.inf, 0.0)


class _Verified(NamedTuple):
    """The last posterior whose free energy is known not to have fallen."""

    posterior: Family
    factors: Factor
    """t_k, an entry a client."""
    reports: _Reports
    change: Family
    """The product of the changes that were answered to it."""
    at_least: Float[np.ndarray, ""]
    """What the free energy has reached for certain; −∞ before it is known."""


class _Memory(NamedTuple):
    """The memory of `Adaptive`. What has an entry a client is a NumPy array, and nothing else is one with sides."""

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
            factors = {**iterate.factors, **rows(clients, plus(held, step))}
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


@Compiled
def _divergence(q: Family, prior: Family) -> Float[Array, ""]:
    return q.kl(prior)
