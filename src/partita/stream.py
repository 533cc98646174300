"""Batches one after another, without an end that is known: each is one more factor of the posterior.

A batch is a client that joins, answers until it has settled, and leaves; its factor stays. Its rows are needed again
only where it is revisited. What else there is to know of it is one number, `Batch.level`, by which its factor stands
in for its likelihood in the free energy.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import PyTree

from partita.data.shard import Partition, federate
from partita.engines.local import shard_estimate
from partita.errors import SettingsError, unknown
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.learning import Kept
from partita.hyper.values import model_given
from partita.inputs import check_flag, check_fraction, check_kind, check_path, check_seed, check_whole
from partita.io.archive import read, understood
from partita.models import Model
from partita.models.prior import OutsidePrior, base_of
from partita.numerics.stack import Stack
from partita.results.history import History
from partita.results.posterior import Posterior
from partita.server.aggregation.base import divergence
from partita.server.bound import outside_ell
from partita.server.membership import retire
from partita.server.method import Method
from partita.server.monitor import Monitor, posterior_of
from partita.server.run import Result, run
from partita.server.state import State, init, with_learning
from partita.storage.checkpoint import load, save

__all__ = ["Batch", "Stream"]

_QUIET = Monitor(progress=False)
_TOLERANCE = 1e-6


class Batch(NamedTuple):
    """What is kept of a batch besides its factor."""

    name: str
    rows: int
    arrived: int
    """How many arrivals there had been before; those that came together have the same."""
    score: float
    """The log predictive density of its rows, summed, before it was taken in; NaN where it was not computed."""
    gain: float
    """By how much it raised the free energy: a bound on log p(its rows | all before), as far as factors tell."""
    level: float
    """E_q[log p(y | θ)] − E_q[log t(θ)] at the q of its last visit; its likelihood is exp(level) · t there."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """A posterior that takes batches in one at a time. Nothing is changed in place: methods return another stream."""

    method: Method
    """How a batch is taken in; one that keeps q = p · Π t_m, such as `methods.sequential()`."""
    model: Model
    prior: Family | OutsidePrior
    seed: int = 0
    remember: float = 1.0
    """The power to which all factors are raised when a batch arrives; less than 1 forgets what is long ago."""
    keep: bool = True
    """Whether factors are kept. Otherwise q is the next batch's prior (`sec:online`): nothing grows but the list of
    batches, and none can be revisited or divided out."""
    draws: int = 1000
    """By how many draws of θ a batch is predicted before it is taken in; 0 for no score."""
    state: State | None = None
    """Prior, factors and posterior; None before the first batch."""
    batches: tuple[Batch, ...] = ()
    """In the order in which they came, without those that were divided out."""
    result: Result | None = dataclasses.field(default=None, repr=False, compare=False)
    """Of the last run, if it was here."""

    def __post_init__(self) -> None:
        check_kind("method", self.method, Method, "use one such as methods.sequential()")
        check_kind("model", self.model, Model, "use one of partita.models")
        check_kind(
            "prior", self.prior, Family | OutsidePrior, "give one, such as a FullGaussian", name="a member of a family"
        )
        check_seed(self.seed)
        check_fraction("share that is remembered", self.remember)
        check_whole("number of draws", self.draws, 0)
        check_flag("setting keep", self.keep)
        if not self.keep and isinstance(self.prior, OutsidePrior):
            raise SettingsError("A prior outside q's family is a factor that is kept: use keep=True.")
        if not self.keep and self.method.learning is not None:
            raise SettingsError("Hyperparameters are learned from factors: use keep=True, or learn none.")
        if self.state is not None:
            check_kind("state", self.state, State, "give a stream's")
        check_kind("batches", self.batches, tuple, "give a stream's")
        if any(not isinstance(batch, Batch) for batch in self.batches) or bool(self.batches) != (
            self.state is not None
        ):
            raise SettingsError("State and batches belong together: give both of one stream, or none.")
        if self.result is not None:
            check_kind("result", self.result, Result, "give that of a run")
        if not self.method.aggregation.keeps_product:
            named = type(self.method.aggregation).__name__
            raise SettingsError(f"{named} does not keep a factor for each batch: use a method such as sequential.")

    @classmethod
    def of(
        cls, method: Method, model: Model, prior: Family | OutsidePrior, result: Result, partition: Partition
    ) -> Self:
        """The stream that goes on from a run of several clients, which came together."""
        begun = cls(method, model, prior, seed=result.state.seed, state=None)
        return begun._after(result, partition, dict.fromkeys(partition.names, (math.nan, math.nan)))

    @classmethod
    def reported(
        cls, method: Method, model: Model, prior: Family | OutsidePrior, result: Result, rows: Mapping[str, int]
    ) -> Self:
        """The same where rows are elsewhere: clients have reported E_q[log p(y | θ)] with their last answers.

        Each at its own answer, so that the free energy is exact as far as these agree.

        Args:
            method: how batches are taken in from now on.
            model: of the run.
            prior: of the run.
            result: of the run.
            rows: how many each client has.

        """
        state = result.state
        batches = []
        for name, ell, factor in zip(state.names, state.ell, state.factors, strict=True):
            if name in rows:
                level = float(ell) - float(factor.expected_log(state.posterior))
                batches.append(Batch(name, rows[name], 0, math.nan, math.nan, level))
        return cls(method, model, prior, seed=state.seed, state=state, batches=tuple(batches), result=result)

    @property
    def posterior(self) -> Posterior:
        """The posterior of all batches so far."""
        return (
            Posterior(self.model, base_of(self.prior)) if self.state is None else posterior_of(self.model, self.state)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the batches."""
        return tuple(batch.name for batch in self.batches)

    @property
    def free_energy(self) -> float:
        """The free energy of all rows so far; 0 before there are any.

        Factors stand in for the likelihoods of batches that are not at hand. It is the sum of what each batch gained,
        and the free energy of the rows themselves once all were revisited.
        """
        if self.state is None:
            return 0.0
        if not self.keep:
            return math.fsum(batch.gain for batch in self.batches)
        q = self.state.posterior.nearest()
        said = [batch.level + float(self.factor(batch.name).expected_log(q)) for batch in self.batches]
        outside = outside_ell(self.prior, q, self.seed)
        return math.fsum(said) + outside - float(divergence(q, self.state.current_prior))

    def factor(self, name: str) -> Factor:
        """The factor of a batch."""
        check_kind("name of a batch", name, str, "give one", name="a text")
        if self.state is None or name not in self.names:
            raise unknown("batch", name, self.names)
        return self.state.factors[self.state.names.index(name)]

    def add(
        self,
        data: PyTree,
        name: str | None = None,
        *,
        weights: np.ndarray | None = None,
        rounds: float | None = None,
        tolerance: float | None = _TOLERANCE,
    ) -> Self:
        """The stream after one more batch; only that batch is visited, until it has settled.

        Args:
            data: its rows, such as a `Table`.
            name: what it is called; "batch 1", or the next number that is free, unless it is given.
            weights: of its rows.
            rounds: how many visits at most; one where the method's context counts rows again at every visit.
            tolerance: as for `run`.

        Returns:
            Another stream. Learned hyperparameters stay as they are until `revisit` sees all rows.

        """
        if name is None:
            name = next(free for k in itertools.count(1) if (free := f"batch {k}") not in self.names)
        check_kind("name of a batch", name, str, "give one", name="a text")
        if name in self.names:
            raise SettingsError(f"There is a batch named {name!r} already: choose another name.")
        partition = federate([data], weights=None if weights is None else [weights], names=[name])
        score = self._score(data, partition)
        if self.method.context.repeats:
            rounds = 1
        if not self.keep:
            return self._passed(partition, name, score, rounds, tolerance)
        faded = self._faded()
        result = faded._run(partition, rounds, tolerance)
        added = faded._after(result, partition, {name: (score, math.nan)})
        last = added.batches[-1]._replace(gain=added.free_energy - faded.free_energy)
        return dataclasses.replace(added, batches=(*added.batches[:-1], last))

    def revisit(
        self, partition: Partition, *, rounds: float | None = None, tolerance: float | None = _TOLERANCE
    ) -> Self:
        """The stream after the batches with these rows were visited again, until all have settled.

        With the rows of every batch it is the fit of all rows at once. What was forgotten of them is known again.
        """
        check_kind("partition", partition, Partition, "make one with partita.federate([…], names=[…])")
        self._check_kept()
        for name in partition.names:
            self.factor(name)
        if self.method.context.repeats:
            raise SettingsError("This method counts rows again at every visit: revisit with methods.sequential().")
        return self._after(self._run(partition, rounds, tolerance), partition, {})

    def without(
        self,
        name: str,
        partition: Partition | None = None,
        *,
        rounds: float | None = None,
        tolerance: float | None = _TOLERANCE,
    ) -> Self:
        """The stream whose posterior a batch's factor is divided out of; with the others' rows, these settle."""
        self._check_kept()
        self.factor(name)
        assert self.state is not None
        if len(self.batches) == 1:
            raise SettingsError(f"{name} is the only batch: without it there are no rows.")
        others = tuple(batch for batch in self.batches if batch.name != name)
        rest = dataclasses.replace(
            self, state=retire(self.state, name, self.method.aggregation), batches=others, result=None
        )
        return rest if partition is None else rest.revisit(partition, rounds=rounds, tolerance=tolerance)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes state and batches to one file, as a checkpoint; no rows are in it."""
        check_path(path)
        if self.state is None:
            raise SettingsError("The stream has no batch yet: add one before it is saved.")
        save(path, self.state, History([batch._asdict() for batch in self.batches]))

    def load(self, path: str | os.PathLike[str]) -> Self:
        """The same stream with what `save` wrote; method, model and prior stay."""
        check_path(path)
        _, about = read(path)
        with understood(path, "checkpoint file"):
            names = [str(name) for name in about["state"]["names"]]
            like = init(base_of(self.prior), names, int(about["state"]["seed"]), self.method.aggregation)
        if self.method.learning is not None:
            like = with_learning(like, self.method.learning, self.model)
        state, history = load(path, like)
        with understood(path, "checkpoint file"):
            batches = tuple(map(_batch, history))
            kept = batches if self.keep else batches[-1:]
            if not batches or not {batch.name for batch in kept} <= set(state.names):
                raise ValueError("its batches are not those of its factors")
        return dataclasses.replace(self, seed=state.seed, state=state, batches=batches, result=None)

    def _run(self, partition: Partition, rounds: float | None, tolerance: float | None) -> Result:
        """Visits some batches; the others stay as they are."""
        return run(
            self._method(partition.names),
            self.model,
            self.prior,
            partition,
            rounds=rounds,
            tolerance=tolerance,
            seed=self.seed,
            state=self.state,
            monitor=_QUIET,
        )

    def _method(self, visited: Sequence[str]) -> Method:
        """The method; hyperparameters move only where all rows are at hand, since factors do not know them."""
        learning = self.method.learning
        if learning is None or set(self.names) <= set(visited):
            return self.method
        return dataclasses.replace(self.method, learning=Kept(learning.names))

    def _after(self, result: Result, partition: Partition, new: Mapping[str, tuple[float, float]]) -> Self:
        """The stream after a run on some batches, of which `new` with their score and gain have just come."""
        state, model = result.state, model_given(self.model, result.state.hyper)
        levels, key, q = {}, jax.random.key(self.seed), state.posterior.nearest()
        for name, shard in zip(partition.names, partition.shards, strict=True):
            ell = shard_estimate(model, q, name, shard, key)
            said = state.factors[state.names.index(name)].expected_log(q)
            levels[name] = float(ell.value) - float(said)
        sizes = dict(zip(partition.names, partition.sizes, strict=True))
        arrived = max((batch.arrived + 1 for batch in self.batches), default=0)
        known = [*self.batches, *(Batch(name, sizes[name], arrived, *scored, math.nan) for name, scored in new.items())]
        batches = tuple(batch._replace(level=levels.get(batch.name, batch.level)) for batch in known)
        return dataclasses.replace(self, state=state, batches=batches, result=result)

    def _score(self, data: PyTree, partition: Partition) -> float:
        """The log predictive density of a batch's rows, each by itself."""
        if not self.draws:
            return math.nan
        densities = self.posterior.log_predictive_density(data, self.draws, self.seed)
        weights = np.asarray(partition.shards[0].weights)[: len(densities)]
        return float(weights @ np.asarray(densities, float))

    def _check_kept(self) -> None:
        if not self.keep:
            raise SettingsError("This stream keeps no factors of its batches: use one with keep=True.")

    def _passed(
        self, partition: Partition, name: str, score: float, rounds: float | None, tolerance: float | None
    ) -> Self:
        """The stream after one more batch, whose prior is the posterior before it, as far as that is remembered."""
        prior = base_of(self.prior)
        if self.state is not None:
            prior = self.state.posterior**self.remember * prior ** (1 - self.remember)
        alone = dataclasses.replace(self, prior=prior, state=None, batches=(), result=None, keep=True, remember=1.0)
        result = alone._run(partition, rounds, tolerance)
        after = alone._after(result, partition, {name: (score, math.nan)})
        batch = after.batches[0]._replace(gain=after.free_energy, arrived=len(self.batches))
        # what is known of all batches is one factor
        whole = Factor.of(result.state.posterior) / Factor.of(base_of(self.prior))
        state = dataclasses.replace(result.state, prior=base_of(self.prior), factors=Stack.of([whole]))
        return dataclasses.replace(self, state=state, batches=(*self.batches, batch), result=result)

    def _faded(self) -> Self:
        """The stream whose factors count for less."""
        if self.state is None or self.remember == 1:
            return self
        factors = Stack.of([factor**self.remember for factor in self.state.factors])
        posterior = self.state.current_prior
        for factor in factors:
            posterior = posterior * factor.natural
        state = self.state.with_iterate(self.state.iterate._replace(posterior=posterior, factors=factors))
        batches = tuple(batch._replace(level=batch.level * self.remember) for batch in self.batches)
        return dataclasses.replace(self, state=state, batches=batches)


def _batch(row: Mapping[str, Any]) -> Batch:
    """A batch as a file has it."""
    numbers = (float(row[name]) for name in ("score", "gain", "level"))
    return Batch(str(row["name"]), int(row["rows"]), int(row["arrived"]), *numbers)
