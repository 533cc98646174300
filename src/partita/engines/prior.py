"""The client of a prior outside q's family, for which the server answers itself."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from partita.engines.base import Answer, Engine, Failure, Task
from partita.engines.local import reply, shard_ell, shard_estimate
from partita.errors import InputError, SettingsError
from partita.expectations import Estimate
from partita.expectations.capabilities import CurvedInTable
from partita.families import Family, FullGaussian
from partita.families.gaussian import gaussian
from partita.hyper.values import Hyper, likelihood_hyper
from partita.local.client import Recipe
from partita.models.prior import OutsidePrior

__all__ = ["PRIOR", "PriorEngine"]

PRIOR = "prior"
"""The name of the prior's client."""


class PriorEngine(Engine):
    """Another engine with one client more: the prior's, whose answers are there at once and cost no message."""

    def __init__(self, clients: Engine, prior: OutsidePrior) -> None:
        if PRIOR in clients.names:
            raise SettingsError(
                f"A client is called {PRIOR!r}, as is the one that answers for a prior outside q's family: rename it."
            )
        self.clients, self.prior = clients, prior
        self._asked: list[Task] = []

    @property
    def hosted(self) -> tuple[str, ...]:
        return (PRIOR,)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.clients.names, PRIOR)

    @property
    def simulated(self) -> bool:
        return self.clients.simulated

    @property
    def ready(self) -> bool:
        return bool(self._asked) or self.clients.ready

    def check(self, recipe: Recipe, prior: Family) -> None:
        self.clients.check(recipe, prior)
        start = prior if recipe.start is None else recipe.start
        try:
            found = float(shard_ell(self.prior.row, start, self.prior.shard(1.0), jax.random.key(0)))
        except InputError:
            raise
        except Exception as error:  # a user's log density may raise anything
            why = (str(error) or repr(error)).splitlines()[0]
            raise SettingsError(f"The prior's log density fails where the run starts: {why:.200}") from error
        if not np.isfinite(found):
            raise SettingsError(
                f"The prior has no support where the run starts, its expected log density is {found:g} there: "
                "give its OutsidePrior a base, or the method a start, inside of its support."
            )

    def bind(self, recipe: Recipe, prior: Family) -> None:
        self.clients.bind(recipe, prior)
        solver = recipe.solver.for_densities
        self.recipe = dataclasses.replace(recipe, model=self.prior.row, solver=solver, learned=())
        # what is divided by the temperature, as likelihoods are, but belongs to the divergence
        self._shard = self.prior.shard(recipe.temperature)

    def submit(self, task: Task) -> None:
        if task.name != PRIOR:
            self.clients.submit(task)
        elif task.id not in [asked.id for asked in self._asked]:
            self._asked.append(task)

    def submit_again(self) -> None:
        super().submit_again()
        self.clients.submit_again()

    def next(self, timeout: float = np.inf) -> Answer | Failure | None:
        if not self._asked:
            return self.clients.next(timeout)
        task = self._asked.pop(0)
        said = reply(self.recipe, task._replace(hyper={}), self._shard, 1.0)
        still = {name: jnp.zeros_like(value) for name, value in likelihood_hyper(task.hyper).items()}
        return Answer(task.id, dataclasses.replace(said, gradient=still), self.now())

    def ell(self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None) -> float:
        return self.clients.ell(q, key, without, hyper) + float(shard_ell(self.prior.row, q, self._shard, key))

    def estimate(
        self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None
    ) -> Estimate:
        own = shard_estimate(self.prior.row, q, PRIOR, self._shard, key)
        return self.clients.estimate(q, key, without, hyper).beside(own)

    def curvature(
        self, model: CurvedInTable, q: Family, without: Collection[str] = ()
    ) -> Float[np.ndarray, "d d"] | None:
        theirs, base = self.clients.curvature(model, q, without), gaussian(self.prior.base)
        if theirs is None or theirs.shape[0] != base.mean.size:
            return None
        whole = FullGaussian.from_mean_covariance(gaussian(q).mean, gaussian(q).covariance)
        data, weights = self._shard.data, self._shard.weights
        own = whole.natural_gradient(lambda at: self.prior.density.ell(at, data, weights, jax.random.key(0)))
        return theirs + np.asarray(own.matrix() - self._shard.weights[0] * base.matrix(), float)

    def sent_at(self, task: str) -> float:
        return self.clients.sent_at(task)

    def cancel(self, task: str) -> None:
        self._asked = [asked for asked in self._asked if asked.id != task]
        self.clients.cancel(task)

    def digests(self) -> Mapping[str, int]:
        return self.clients.digests()

    def away(self, names: Sequence[str]) -> Bool[np.ndarray, " m"]:
        return self.clients.away(names) & (np.asarray(names) != PRIOR)

    def now(self) -> float:
        return self.clients.now()

    def notify(self, task: Task, refusal: str) -> None:
        if task.name != PRIOR:
            self.clients.notify(task, refusal)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.clients.running():
            try:
                yield
            finally:
                self._asked.clear()
                self.submit_again()
