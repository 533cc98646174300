"""How are answers taken in? Step ③ of `alg:vmp`; the only place that damps."""

import abc
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from partita.compiled import Compiled
from partita.errors import InputError, unknown
from partita.families import Family
from partita.objective import Factor


class Ledger(NamedTuple):
    """What the server holds: the posterior, every client's factor, and whatever the aggregation remembers."""

    posterior: Family
    factors: Mapping[int, Factor]
    memory: PyTree = None


class Taken(NamedTuple):
    """What became of some answers: the ledger after them, or why they were refused."""

    ledger: Ledger
    damping: float
    """The damping ρ taken; 0 when nothing was taken in."""
    trials: int
    """How many times the free energy was asked for, at one communication a client each."""
    refusals: dict[int, str]
    """The clients whose answers were refused, with the reason."""
    residual: float | None = None
    """How far from a fixed point the posterior was, where the clients' own residuals do not tell it."""


Mean = Literal["all", "answered"]
FreeEnergy = Callable[[Family], float]


class Aggregation(eqx.Module):
    """Takes clients' undamped changes into the posterior and their factors."""

    def init(self, prior: Family, clients: int) -> Ledger:
        """The ledger before the first answer: t_m = 1 for every client and q = p."""
        return Ledger(prior, dict.fromkeys(range(clients), Factor.one(prior)))

    @abc.abstractmethod
    def update(self, ledger: Ledger, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        """The ledger after the changes `deltas` of some clients. A refusal leaves everything as it was."""


def check_damping(damping: float | None) -> None:
    """Raises an `InputError` unless ρ is in (0, 1]."""
    if damping is not None and not 0 < damping <= 1:
        raise InputError(f"The damping is a number above 0 and at most 1, not {damping}.")


class Damped(Aggregation):
    """q ← q · Π Δ_k^ρ and t_k ← t_k · Δ_k^ρ with a fixed ρ; `Damped(None)` is ρ = 1/M."""

    damping: float | None = 1.0

    def __check_init__(self) -> None:
        check_damping(self.damping)

    def update(self, ledger: Ledger, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        damping = 1 / len(ledger.factors) if self.damping is None else self.damping
        return attempt(ledger, deltas, damping)


class Backtracking(Aggregation):
    """Halves ρ until the posterior is proper and, if asked, until the free energy does not fall, to rounding.

    One client's change need not raise the free energy at any ρ: after `halvings` it is refused, which is recorded.
    """

    damping: float | None = 1.0
    watch_free_energy: bool = eqx.field(static=True, default=False)
    halvings: int = eqx.field(static=True, default=10)

    def __check_init__(self) -> None:
        check_damping(self.damping)

    def update(self, ledger: Ledger, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        damping = 1 / len(ledger.factors) if self.damping is None else self.damping
        before = free_energy(ledger.posterior) if self.watch_free_energy else 0.0
        rounding = 8 * float(jnp.finfo(jax.tree.leaves(ledger.posterior)[0].dtype).eps) * (1 + abs(before))
        trials = int(self.watch_free_energy)
        reason = ""
        for _ in range(self.halvings + 1):
            taken = attempt(ledger, deltas, damping)
            if taken.damping == 0:
                reason = "would make the posterior improper"
            elif not self.watch_free_energy:
                return taken
            else:
                trials += 1
                if free_energy(taken.ledger.posterior) >= before - rounding:
                    return taken._replace(trials=trials)
                reason = "would lower the free energy"
            damping /= 2
        reason = f"{reason} even with damping {2 * damping:.2g}"
        return Taken(ledger, 0.0, trials, dict.fromkeys(deltas, reason))


class Averaging(Aggregation):
    """Bayesian ADMM: η ← (1−α)·mean_k η_k + α·(η_0 + Σ_k λ_k), after t_k's λ_k has moved by γρ(η_k − η).

    η_k is client k's last answer, whether or not it answered this time; before its first it is where everybody began.
    The penalty ρ is that of `Proximal`. The mixing α is 1/(1 + ρM) unless given. At a fixed point all η_k are η, and η
    is the product; ρ = α = γ = 1 is undamped synchronous PVI. On the way q need not be p · Π t_m.
    """

    penalty: float = 1.0
    mixing: float | None = None
    step: float = 1.0
    over: Mean = eqx.field(static=True, default="all")
    """Whether the mean is over all clients' last answers, or over those who answered this time."""
    start: Family | None = None
    """The posterior to begin with; the prior when None."""

    def __check_init__(self) -> None:
        if not self.penalty > 0 or not self.step > 0:
            raise InputError(f"Penalty and step are numbers above 0, not {self.penalty} and {self.step}.")
        if self.mixing is not None and not 0 < self.mixing <= 1:
            raise InputError(f"The mixing is a number above 0 and at most 1, not {self.mixing}.")
        if self.over not in ("all", "answered"):
            raise unknown("mean", self.over, ("all", "answered"))

    def init(self, prior: Family, clients: int) -> Ledger:
        posterior, part = begin(prior, self.start, clients)
        answers = dict.fromkeys(range(clients), posterior)
        return Ledger(posterior, dict.fromkeys(range(clients), part), Averages(answers, posterior, posterior))

    def update(self, ledger: Ledger, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        factors, (answers, mean, product) = dict(ledger.factors), ledger.memory
        answers, clients = dict(answers), len(factors)
        mixing = 1 / (1 + self.penalty * clients) if self.mixing is None else self.mixing
        residuals = []
        for client, delta in deltas.items():
            before = (answers[client], factors[client], mean, product)
            after = respond(ledger.posterior, delta, self.step * self.penalty, clients, *before)
            answers[client], factors[client], mean, product, away = after
            residuals.append(away)
        if self.over == "answered":
            total = functools.reduce(operator.mul, (delta.natural for delta in deltas.values()))
            centre = ledger.posterior * total ** (1 / len(deltas))
        else:
            centre = mean
        posterior, proper, moved = mix(ledger.posterior, centre, product, mixing)
        if not proper:
            reason = f"would make the posterior improper with mixing {mixing:.2g}"
            return Taken(ledger, 0.0, 0, dict.fromkeys(deltas, reason))
        residual = float(np.max([moved, *residuals]))
        return Taken(Ledger(posterior, factors, Averages(answers, mean, product)), 1.0, 0, {}, residual)


class Averages(NamedTuple):
    """What `Averaging` remembers: every client's last answer, their mean, and the product p · Π t_m."""

    answers: Mapping[int, Family]
    mean: Family
    product: Family


def _respond(
    posterior: Family,
    delta: Factor,
    step: float,
    clients: float,
    answer: Family,
    factor: Factor,
    mean: Family,
    product: Family,
) -> tuple[Family, Factor, Family, Family, Float[Array, ""]]:
    """A client's answer, its factor, everybody's mean and the product after a change, and how far the answer lies."""
    change, latest = delta**step, posterior * delta.natural
    residual = jnp.where(latest.is_proper(), latest.kl(posterior), jnp.inf)
    return latest, factor * change, mean * (latest / answer) ** (1 / clients), product * change.natural, residual


def _mix(
    before: Family, centre: Family, product: Family, mixing: float
) -> tuple[Family, Bool[Array, ""], Float[Array, ""]]:
    """The posterior between the mean of the answers and the product, whether it is proper, and how far it moved."""
    posterior = centre ** (1 - mixing) * product**mixing
    return posterior, posterior.is_proper(), posterior.kl(before)


respond = Compiled(_respond)
mix = Compiled(_mix)


class Anticipating(Aggregation):
    """Another aggregation, in whose first pass the factors of clients not yet heard are estimated from the others'.

    Each is the geometric mean of the factors of those who have answered (`sec:stochastic-approx`, its last paragraph),
    so that the posterior is about as concentrated as it will be once everybody has. A client's first answer then
    replaces its estimate as any answer replaces a factor.
    """

    aggregation: Aggregation = Damped()

    def init(self, prior: Family, clients: int) -> Ledger:
        ledger = self.aggregation.init(prior, clients)
        return ledger._replace(memory=(ledger.memory, np.zeros(clients, bool)))

    def update(self, ledger: Ledger, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        memory, heard = ledger.memory
        taken = self.aggregation.update(ledger._replace(memory=memory), deltas, free_energy)
        heard = heard.copy()
        heard[[k for k in deltas if k not in taken.refusals]] = True
        posterior, factors = taken.ledger.posterior, dict(taken.ledger.factors)
        unheard = np.flatnonzero(~heard).tolist()
        if heard.any() and unheard:
            known = [factors[k] for k in np.flatnonzero(heard).tolist()]
            estimate = functools.reduce(operator.mul, known) ** (1 / len(known))
            moved = posterior * (estimate.natural / factors[unheard[0]].natural) ** float(len(unheard))
            if moved.is_proper():
                posterior = moved
                factors |= dict.fromkeys(unheard, estimate)
        return taken._replace(ledger=Ledger(posterior, factors, (taken.ledger.memory, heard)))


class ServerOptimiser(Aggregation):
    """The sum of the changes as a gradient ∇_μ F, pulled back to unconstrained coordinates for an optimiser's step.

    With `NaturalGradient` clients that all answer, this is an optimiser on pooled rows, for any number of clients. Each
    of those who answered bears an equal part of the step in its factor, so that q = p · Π t_m holds here as well.
    """

    optimiser: Callable[..., optax.GradientTransformation] = eqx.field(static=True, default=optax.adam)
    learning_rate: float = 1e-2
    start: Family | None = None
    """The posterior to begin with; the prior when None."""

    def __check_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InputError(f"The learning rate is a number above 0, not {self.learning_rate}.")

    def init(self, prior: Family, clients: int) -> Ledger:
        posterior, part = begin(prior, self.start, clients)
        memory = self.optimiser(self.learning_rate).init(posterior.unconstrained())
        return Ledger(posterior, dict.fromkeys(range(clients), part), memory)

    def update(self, ledger: Ledger, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        changes, factors = list(deltas.values()), [ledger.factors[k] for k in deltas]
        moved, factors, memory, proper, residual = ascend(self, ledger.posterior, factors, changes, ledger.memory)
        if not proper:
            reason = "would make the posterior improper at this learning rate"
            return Taken(ledger, 0.0, 0, dict.fromkeys(deltas, reason))
        changed = {**ledger.factors, **dict(zip(deltas, factors, strict=True))}
        return Taken(Ledger(moved, changed, memory), 1.0, 0, {}, float(residual))


def _ascend(
    server: ServerOptimiser, posterior: Family, factors: list[Factor], deltas: list[Factor], memory: PyTree
) -> tuple[Family, list[Factor], PyTree, Bool[Array, ""], Float[Array, ""]]:
    """One step of the server's optimiser along ∇_μ F, shared out among the factors, and whether it can be taken.

    Last comes how far the undamped fixed-point step would have led, in nats of KL: 0 at an optimum, at any rate.
    """
    total = functools.reduce(operator.mul, (delta.natural for delta in deltas))
    moved, memory = climb(server.optimiser(server.learning_rate), posterior, total, memory)
    part = (Factor.of(moved) / Factor.of(posterior)) ** (1 / len(deltas))
    target = posterior * total
    residual = jnp.where(target.is_proper(), target.kl(posterior), jnp.inf)
    return moved, [factor * part for factor in factors], memory, moved.is_proper(), residual


ascend = Compiled(_ascend)


def agile_adam(learning_rate: float) -> optax.GradientTransformation:
    """Adam that remembers squares for a hundred steps instead of a thousand, in which gradients become far smaller."""
    return optax.adam(learning_rate, b2=0.99)


class Incremental(Aggregation):
    """An optimiser climbs the free energy that all clients' last gradients tell, however old most of them are.

    A client's factor is its last natural gradient ∇_μ ell_k, so that prior times factors over posterior estimates
    ∇_μ F; the newest changes count several times, `gain` · M / (how many answered) and at least once. That is an
    incremental gradient method with the factors as its table: `gain` = 1/M is SAG (Schmidt et al. 2017), 1 is SAGA
    (Defazio et al. 2014), whose estimate is unbiased. Where every client answers it is an optimiser on pooled rows.
    In the first pass the factors of clients not heard yet are the geometric mean of the others'
    (`sec:stochastic-approx`).

    The noise of a single client's gradient vanishes as its factor becomes right, which stochastic global VI's does not,
    and so does the bias of clients who are unlike. On the way q is not p · Π t_m; at a fixed point it is.
    """

    optimiser: Callable[..., optax.GradientTransformation] = eqx.field(static=True, default=agile_adam)
    learning_rate: float = 1e-3
    gain: float = 0.5
    start: Family | None = None
    """The posterior to begin with; the prior when None."""

    def __check_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InputError(f"The learning rate is a number above 0, not {self.learning_rate}.")
        if not 0 <= self.gain <= 1:
            raise InputError(f"The gain is a number from 0 to 1, not {self.gain}.")

    def init(self, prior: Family, clients: int) -> Ledger:
        posterior, _ = begin(prior, self.start, clients)
        optimiser = self.optimiser(self.learning_rate).init(posterior.unconstrained())
        memory = Tracked(optimiser, prior, prior.one(), np.zeros(clients, bool))
        return Ledger(posterior, dict.fromkeys(range(clients), Factor.one(prior)), memory)

    def update(self, ledger: Ledger, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        clients, heard = len(ledger.factors), ledger.memory.heard.copy()
        heard[list(deltas)] = True
        weight = max(1.0, self.gain * clients / len(deltas))
        changed = {k: replace(ledger.factors[k], delta) for k, delta in deltas.items()}
        moved, optimiser, evidence, proper, residual = track(
            self, ledger.posterior, list(deltas.values()), ledger.memory, weight, clients / int(heard.sum())
        )
        if not proper:
            reason = "would make the posterior improper at this learning rate"
            return Taken(ledger, 0.0, 0, dict.fromkeys(deltas, reason))
        memory = Tracked(optimiser, ledger.memory.prior, evidence, heard)
        left = float(residual) if heard.all() else np.inf
        return Taken(Ledger(moved, {**ledger.factors, **changed}, memory), 1.0, 0, {}, left)


class Tracked(NamedTuple):
    """What `Incremental` remembers: its optimiser, the prior, the product of all factors, and who has answered."""

    optimiser: PyTree
    prior: Family
    evidence: Family
    heard: Bool[np.ndarray, " m"]


def _track(
    server: Incremental, posterior: Family, deltas: list[Factor], memory: Tracked, weight: float, unheard: float
) -> tuple[Family, PyTree, Family, Bool[Array, ""], Float[Array, ""]]:
    """A step of the server's optimiser, what it remembers, all factors' product, and whether the step can be taken.

    Last comes how far prior times factors lies from the posterior, in nats of KL.
    """
    total = functools.reduce(operator.mul, (delta.natural for delta in deltas))
    evidence = memory.evidence * total
    product = memory.prior * evidence**unheard
    direction = product * total ** (weight - 1) / posterior
    moved, optimiser = climb(server.optimiser(server.learning_rate), posterior, direction, memory.optimiser)
    residual = jnp.where(product.is_proper(), product.kl(posterior), jnp.inf)
    return moved, optimiser, evidence, moved.is_proper(), residual


track = Compiled(_track)
replace = Compiled(lambda factor, delta: factor * delta)


def climb(
    optimiser: optax.GradientTransformation, posterior: Family, direction: Family, memory: PyTree
) -> tuple[Family, PyTree]:
    """The posterior after a step along ∇_μ F, pulled back to unconstrained coordinates, and the optimiser's memory."""
    coordinates = posterior.unconstrained()
    mean, pull = jax.vjp(lambda c: posterior.with_unconstrained(c).mean_parameters(), coordinates)
    (gradient,) = pull(jax.tree.unflatten(jax.tree.structure(mean), jax.tree.leaves(direction)))
    change, memory = optimiser.update(jax.tree.map(jnp.negative, gradient), memory, coordinates)
    return posterior.with_unconstrained(jax.tree.map(jnp.add, coordinates, change)), memory


def begin(prior: Family, start: Family | None, clients: int) -> tuple[Family, Factor]:
    """A posterior to begin with, the prior when there is no start, and the equal part of it that each factor bears."""
    posterior = prior if start is None else start.fitting(prior, "start")
    return posterior, (Factor.of(posterior) / Factor.of(prior)) ** (1 / clients)


def attempt(ledger: Ledger, deltas: Mapping[int, Factor], damping: float) -> Taken:
    """The product with one damping, without those whose change alone makes the posterior improper; they are refused."""
    posterior, factors = ledger.posterior, dict(ledger.factors)
    for client, delta in deltas.items():
        posterior, factors[client], proper = take(posterior, factors[client], delta, damping)
    if proper:
        return Taken(ledger._replace(posterior=posterior, factors=factors), damping, 0, {})
    alone = [k for k, delta in deltas.items() if not take(ledger.posterior, ledger.factors[k], delta, damping)[2]]
    reason = f"would make the posterior improper with damping {damping:.2g}"
    others = {k: delta for k, delta in deltas.items() if k not in alone}
    if alone and others:
        rest = attempt(ledger, others, damping)
        return rest._replace(refusals=rest.refusals | dict.fromkeys(alone, reason))
    if not alone:
        reason = f"{reason} together with the others"
    return Taken(ledger, 0.0, 0, dict.fromkeys(deltas, reason))


def _take(posterior: Family, factor: Factor, delta: Factor, damping: float) -> tuple[Family, Factor, Bool[Array, ""]]:
    """One answer taken in: q · Δ^ρ and t · Δ^ρ, and whether the former is proper."""
    change = delta**damping
    moved = posterior * change.natural
    return moved, factor * change, moved.is_proper()


take = Compiled(_take)
