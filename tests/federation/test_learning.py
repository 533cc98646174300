"""Hyperparameters are learned over a link as in one process, and survive a server that is killed."""

import functools
import operator

import jax
import numpy as np
import pytest

import partita as pt
from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import RemoteEngine
from partita.federation import config
from partita.federation.client import Client
from partita.federation.rehearse import Rehearsal
from partita.federation.serve import serve as serve_folder
from partita.io.wire import unpack
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.storage.ledger import Ledger
from support.clinic_files import TOML, clinic, write
from support.remote_runs import MODEL, PARTS, PRIOR, endpoints, serve
from support.weather import CrashAfter, CrashingLedger, FaultyLink, ServerKilled

METHODS = {
    (name, how): pt.methods.named(name, solver=pt.Conjugate(), damping=1.0, learn=["noise", "prior_scales"], how=how)
    for name, how in (
        ("sequential", "collapsed"),
        ("synchronous", "coordinate"),
        ("sequential", "stochastic"),
        ("asynchronous", "stochastic"),
    )
}


def values(result):
    return np.concatenate([np.ravel(value) for value in result.posterior.hyper.values()])


@pytest.mark.parametrize("which", METHODS, ids="-".join)
def test_a_federated_run_equals_the_run_in_one_process(which, tmp_path):
    method = METHODS[which]
    link = FaultyLink(endpoints(method))
    there = serve(method, link, Ledger(tmp_path / "ledger"))
    here = pt.run(method, MODEL, PRIOR, PARTS, tolerance=1e-12, monitor=Monitor(every=0))
    np.testing.assert_allclose(values(there), values(here), rtol=1e-12)
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-10)
    assert not np.allclose(values(there), 1.0, atol=0.1)
    assert there.state.communications == here.state.communications
    asked = [unpack(message) for message in link.sent]
    assert all("e['noise']" in message.arrays for message in asked if "seed" in message.header)


def test_clients_in_single_precision_answer_though_the_server_has_double(tmp_path):
    def single(tree):
        return jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)

    method = pt.methods.named("sequential", solver=pt.Conjugate(), learn=["noise", "prior_scale"])
    prior, recipe = single(PRIOR), method.recipe(MODEL)
    pairs = zip(PARTS.names, PARTS.shards, strict=True)
    link = FaultyLink({name: ClientEndpoint(name, recipe, prior, single(shard)) for name, shard in pairs})
    engine = RemoteEngine(link, dict(zip(PARTS.names, PARTS.sizes, strict=True)))
    options = {"rounds": 40, "monitor": Monitor(every=0)}
    limits = Rules(deadline=10.0, until=5000.0)
    there = pt.run(method, MODEL, prior, engine=engine, rules=limits, tolerance=1e-5, **options)
    here = pt.run(method, MODEL, PRIOR, PARTS, tolerance=1e-9, **options)
    assert there.status is pt.Status.CONVERGED
    assert not any(row["unanswered"] for row in there.history)
    # a gradient of sqrt(2e-5) is left, where the bound bends by 4 in the logarithm of two parameters' scale
    np.testing.assert_allclose(values(there), values(here), rtol=2e-3)


def test_a_federation_learns_the_hyperparameters_in_its_configuration(tmp_path):
    text = TOML + '[method]\nname = "sequential"\nlearn = ["slope"]\nhow = "stochastic"\n'
    federation = config.read(text.encode(), "federation.toml")
    files = {name: tmp_path / f"{name}.csv" for name in federation.clients}
    for seed, file in enumerate(files.values()):
        write(file, clinic(seed))
    clients = {name: Client(name, federation, file) for name, file in files.items()}
    there, here = serve_folder(tmp_path, federation, FaultyLink(clients)), Rehearsal.read(federation, files).run()
    np.testing.assert_allclose(values(there), values(here), rtol=1e-8)
    assert abs(values(there) - 1.0) > 0.1
    assert "slope" in (tmp_path / "summary.csv").read_text()


def test_a_ledger_with_other_learned_hyperparameters_is_refused(tmp_path):
    learning, plain = METHODS["sequential", "stochastic"], pt.methods.sequential(pt.Conjugate())
    serve(learning, FaultyLink(endpoints(learning)), Ledger(tmp_path / "ledger"), until=20.0)
    with pytest.raises(pt.InputError, match="learns other hyperparameters"):
        serve(plain, FaultyLink(endpoints(plain)), Ledger(tmp_path / "ledger"))


def test_dask_gives_the_same_numbers_as_one_process():
    distributed = pytest.importorskip("distributed")
    from partita.engines.dask import DaskEngine

    method = METHODS["synchronous", "coordinate"]
    about = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    options = {"rounds": 20, "monitor": Monitor(every=0)}
    with distributed.LocalCluster(**about) as local, distributed.Client(local) as cluster:
        there = pt.run(method, MODEL, PRIOR, engine=DaskEngine(cluster, PARTS), **options)
    here = pt.run(method, MODEL, PRIOR, PARTS, **options)
    np.testing.assert_allclose(values(there), values(here), rtol=1e-10)
    assert not np.allclose(values(there), 1.0, atol=0.1)
    assert there.state.communications == here.state.communications


@pytest.mark.slow
@pytest.mark.parametrize("which", [("sequential", "collapsed"), ("asynchronous", "stochastic")], ids="-".join)
def test_a_server_killed_at_many_operations_resumes_with_the_same_result(which, tmp_path):
    method, there = METHODS[which], endpoints(METHODS[which])
    link = FaultyLink(there)
    undisturbed = serve(method, link, CrashingLedger(tmp_path / "undisturbed", link.crash_after))
    for operations in range(3, link.crash_after.operations_done, link.crash_after.operations_done // 5):
        path = tmp_path / f"{operations}"
        link = FaultyLink(there, crash_after=CrashAfter(operations))
        with pytest.raises(ServerKilled):
            serve(method, link, CrashingLedger(path, link.crash_after))
        link.crash_after = CrashAfter()
        result = serve(method, link, CrashingLedger(path, link.crash_after))
        state = result.state
        product = functools.reduce(operator.mul, (factor.natural for factor in state.factors), state.current_prior)
        np.testing.assert_allclose(state.posterior.precision, product.precision, rtol=1e-12)
        # answers that were under way may come in another order; a hundred rounds then end as near to the maximum
        np.testing.assert_allclose(values(result), values(undisturbed), rtol=1e-8 if "sequential" in which else 1e-4)
