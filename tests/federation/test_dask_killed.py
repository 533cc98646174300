"""A Dask cluster whose workers and whose server are killed at work."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import partita as pt
from partita.results.posterior_file import load_posterior
from partita.server.monitor import Monitor
from support.problems import MODEL, PARTS, PRIOR, SOLVER
from support.processes import until

pytest.importorskip("distributed")
from partita.engines.dask import DaskEngine
from partita.storage.ledger import Ledger

METHOD = pt.methods.synchronous(SOLVER)
SERVER = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from distributed import Client
import partita as pt
from partita.engines.dask import DaskEngine
from partita.server.monitor import Monitor
from partita.storage.ledger import Ledger
from support.problems import MODEL, PARTS, PRIOR, SOLVER

METHOD = pt.methods.synchronous(SOLVER)
ledger = Ledger(sys.argv[2])
with Client(sys.argv[1]) as client:
    engine = DaskEngine(client, PARTS, ledger)
    kept = {"store": ledger, "requests": ledger}
    result = pt.run(METHOD, MODEL, PRIOR, engine=engine, rounds=40, monitor=Monitor(every=0), **kept)
result.posterior.save(sys.argv[3])
"""


@pytest.fixture(scope="module")
def here():
    return pt.run(METHOD, MODEL, PRIOR, PARTS, rounds=40, monitor=Monitor(every=0))


@pytest.mark.slow
def test_a_worker_killed_during_a_task_is_replaced(cluster, here):
    killed = []

    def kill():
        busy = until(lambda: next((worker for worker, tasks in cluster.processing().items() if tasks), None), 60.0)
        killed.append(cluster.run(os.getpid, workers=[busy], nanny=False)[busy])
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    engine = DaskEngine(cluster, PARTS)
    thread.start()
    there = pt.run(METHOD, MODEL, PRIOR, engine=engine, rounds=40, monitor=Monitor(every=0))
    thread.join()
    assert killed
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-8)


@pytest.mark.slow
def test_a_server_killed_during_a_round_resumes(cluster, here, tmp_path):
    ledger, posterior = tmp_path / "ledger.sqlite", tmp_path / "posterior.npz"
    tests = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", SERVER, cluster.scheduler.address, str(ledger), str(posterior)]
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": tests})
    until(lambda: ledger.exists() and _answers(ledger) >= 4)
    server.kill()
    server.wait()
    assert not posterior.exists()
    subprocess.run(command, env={**os.environ, "PYTHONPATH": tests}, check=True, timeout=300)
    q, _ = load_posterior(posterior, PRIOR)
    np.testing.assert_allclose(q.mean, here.posterior.mean, rtol=1e-8)
    assert _answers(ledger) == here.state.answers


def _answers(ledger):
    """How many answers have been taken in."""
    numbers = Ledger(ledger).said("numbers") or {}
    return numbers.get("answers", 0)
