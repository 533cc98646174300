"""The averaging step of Bayesian ADMM (Möllenhoff et al. 2025); undamped synchronous PVI is a special case."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from partita.families import Family
from partita.families.base import check_start
from partita.families.factor import Factor
from partita.inputs import check_choice, check_finite_number, check_fraction
from partita.numerics.compiled import Compiled, Scalar, Whole
from partita.numerics.stack import Stack
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, begin, multiplied, refused
from partita.server.refusal import Reason

__all__ = ["Averaging", "Mean"]

Mean = Literal["all", "answered"]


class Averaging(Aggregation):
    """Bayesian ADMM: η ← (1−α)·mean_k η_k + α·(η_0 + Σ_k λ_k), after t_k's λ_k has moved by γρ(η_k − η).

    η_k is client k's last answer, from this round or an earlier one, and the initial posterior before its first answer.
    Here ρ is the penalty of `Proximal`, α the mixing (default 1/(1 + ρM)) and γ the step. At a fixed point all η_k
    equal η, and q = p · Π t_m; before convergence that need not hold. ρ = α = γ = 1 is undamped synchronous PVI.
    """

    penalty: float = 1.0
    mixing: float | None = None
    step: float = 1.0
    over: Mean = eqx.field(static=True, default="all")
    """Whether to average the last answers of all clients, or only the answers of this round."""
    start: Family | None = None
    """The initial posterior; the prior if None."""

    def __check_init__(self) -> None:
        check_finite_number("penalty", self.penalty, above=0)
        check_finite_number("step", self.step, above=0)
        if self.mixing is not None:
            check_fraction("mixing", self.mixing)
        check_choice("mean", self.over, ("all", "answered"))
        check_start(self.start)

    @property
    def tuned(self) -> tuple[str, float]:
        return "step", self.step

    def init(self, prior: Family, clients: int) -> Iterate:
        posterior, part = begin(prior, self.start, clients)
        answers = Stack.repeated(posterior, clients)
        return Iterate(posterior, Stack.repeated(part, clients), _Averages(answers, posterior, posterior))

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        (held, mean, product), clients = iterate.memory, len(iterate.factors)
        answers, factors = dict[int, Family](), dict[int, Factor]()
        mixing = 1 / (1 + self.penalty * clients) if self.mixing is None else self.mixing
        residuals = []
        for client, delta in deltas.items():
            before = (held[client], iterate.factors[client], mean, product)
            after = _respond(iterate.posterior, delta, self.step * self.penalty, clients, *before)
            answers[client], factors[client], mean, product, away = after
            residuals.append(away)
        centre = mean
        if self.over == "answered":
            centre = iterate.posterior * multiplied(delta.natural for delta in deltas.values()) ** (1 / len(deltas))
        posterior, proper, moved = _mix(iterate.posterior, centre, product, mixing)
        if not proper:
            sentence = f"would make the posterior improper with mixing {mixing:.2g}"
            return refused(iterate, deltas, Reason.IMPROPER, sentence)
        residual = float(np.max([moved, *residuals]))
        memory = _Averages(held.replaced(answers), mean, product)
        return Aggregated(Iterate(posterior, iterate.factors.replaced(factors), memory), 1.0, 0, {}, residual)

    def log_evidence(self, prior: Family, iterate: Iterate) -> None:
        """None: clients maximise a bound, and q = p · Π t_m does not hold before convergence."""

    def remembered(self, memory: "_Averages", change: Family) -> "_Averages":
        return memory._replace(product=memory.product * change)


class _Averages(NamedTuple):
    """The memory of `Averaging`: every client's last answer, their mean, and the product p · Π t_m."""

    answers: Stack[Family]
    mean: Family
    product: Family


@Compiled
def _respond(
    posterior: Family,
    delta: Factor,
    step: Scalar,
    clients: Whole,
    answer: Family,
    factor: Factor,
    mean: Family,
    product: Family,
) -> tuple[Family, Factor, Family, Family, Float[Array, ""]]:
    """A client's answer and factor, the mean and the product after its change, and the residual of the answer."""
    change, latest = delta**step, posterior * delta.natural
    residual = jnp.where(latest.is_proper(), latest.kl(posterior), jnp.inf)
    return latest, factor * change, mean * (latest / answer) ** (1 / clients), product * change.natural, residual


@Compiled
def _mix(
    before: Family, centre: Family, product: Family, mixing: Scalar
) -> tuple[Family, Bool[Array, ""], Float[Array, ""]]:
    """The posterior between the mean of the answers and the product, whether it is proper, and how far it moved."""
    posterior = centre ** (1 - mixing) * product**mixing
    return posterior, posterior.is_proper(), posterior.kl(before)
