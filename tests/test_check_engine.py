"""The check of engines passes engines that partita has, and finds what breaks their contract."""

import numpy as np
import pytest

import partita as pt
from partita.engines import Answer, Failure
from partita.engines.remote import RemoteEngine
from partita.expectations import Estimate
from support import remote_runs
from support.problems import MODEL, PARTS, PRIOR, SOLVER, STOCHASTIC
from support.weather import FaultyLink

METHOD = pt.methods.sequential(SOLVER)


class Again(pt.LocalEngine):
    """Sends a task in flight twice."""

    def submit(self, task):
        self._known.discard(task.id)
        self._pending, before = [], self._pending
        super().submit(task)
        self._pending = before + self._pending


class Forgetful(pt.LocalEngine):
    """Uses another random key at every try."""

    tries = 0

    def answer(self, task):
        self.tries += 1
        return super().answer(task._replace(seed=self.tries))


class Everybody(pt.LocalEngine):
    """Counts clients that are to be left out."""

    def ell(self, q, key, without=(), hyper=None):
        return super().ell(q, key, (), hyper) if len(without) < len(self.names) else 0.0


class Halved(pt.LocalEngine):
    """Its ell is not that of the clients."""

    def ell(self, q, key, without=(), hyper=None):
        return super().ell(q, key, without, hyper) / 2


class Overlooking(pt.LocalEngine):
    """Its estimate counts clients that are to be left out."""

    def estimate(self, q, key, without=(), hyper=None):
        return super().estimate(q, key, (), hyper)


class Quartered(pt.LocalEngine):
    """Its estimate is not of ell."""

    def estimate(self, q, key, without=(), hyper=None):
        totals, variance = super().estimate(q, key, without, hyper)
        return Estimate(totals / 4, variance)


class Failing(pt.LocalEngine):
    def next(self, timeout=np.inf):
        received = super().next(timeout)
        return received and Failure(received.task, "cannot be reached")


class Silent(pt.LocalEngine):
    def submit(self, task):
        """Loses it."""


class Mistaken(pt.LocalEngine):
    def next(self, timeout=np.inf):
        received = super().next(timeout)
        return received and Answer("9.9", received.reply, received.time)


class Twins(pt.LocalEngine):
    @property
    def names(self):
        return ("client 0",) * 3


class Asleep(pt.LocalEngine):
    def away(self, names):
        return np.ones(len(names), bool)


BROKEN = {
    Again: "sent twice",
    Forgetful: "a retry of its task otherwise",
    Everybody: "not the sum over clients",
    Halved: "what clients report",
    Overlooking: "the estimate of ell is not the sum over clients",
    Quartered: "the estimate of ell is not ell",
    Failing: "a task fails: its client cannot be reached",
    Silent: "no answer within",
    Mistaken: "to no task",
    Twins: "not distinct",
    Asleep: "said to be away",
}


@pytest.mark.parametrize("engine", BROKEN, ids=lambda engine: engine.__name__)
def test_engines_that_violate_the_contract_are_found(engine):
    solver = STOCHASTIC if engine is Forgetful else SOLVER
    with pytest.raises(AssertionError, match=BROKEN[engine]):
        pt.checks.check_engine(engine(PARTS, threads=1), pt.methods.sequential(solver), MODEL, PRIOR)


def test_the_local_engine_fulfils_the_contract():
    pt.checks.check_engine(pt.LocalEngine(PARTS, (1.0, 3.0, 2.0)), METHOD, MODEL, PRIOR)


def test_the_remote_engine_fulfils_the_contract():
    method = remote_runs.METHODS["sequential"]
    rows = dict(zip(remote_runs.PARTS.names, remote_runs.PARTS.sizes, strict=True))
    engine = RemoteEngine(FaultyLink(remote_runs.endpoints(method)), rows)
    pt.checks.check_engine(engine, method, remote_runs.MODEL, remote_runs.PRIOR)


def test_hyperparameters_go_with_the_tasks():
    learned = pt.methods.sequential(SOLVER, learn=["slope"])
    pt.checks.check_engine(pt.LocalEngine(PARTS), learned, MODEL, PRIOR)
