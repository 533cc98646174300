"""Hyperparameters are learned over a link as in one process, and survive a server that is killed."""

import functools
import operator

import numpy as np
import pytest

import partita as pt
from federation.test_faults import MODEL, PARTS, PRIOR, serve, sites
from federation.weather import Fragile, Fuse, Killed, Weather
from partita.federation.ledger import Ledger
from partita.wire import unpack

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
def test_it_is_the_run_in_one_process(which, tmp_path):
    method = METHODS[which]
    link = Weather(sites(method))
    there = serve(method, link, Ledger(tmp_path / "ledger"))
    here = pt.run(method, MODEL, PRIOR, PARTS, evaluate_every=0, tolerance=1e-12)
    np.testing.assert_allclose(values(there), values(here), rtol=1e-12)
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-10)
    assert not np.allclose(values(there), 1.0, atol=0.1)
    assert there.state.communications == here.state.communications
    asked = [unpack(message) for message in link.sent]
    assert all("e['noise']" in message.arrays for message in asked if "seed" in message.header)


@pytest.mark.slow
@pytest.mark.parametrize("which", [("sequential", "collapsed"), ("asynchronous", "stochastic")], ids="-".join)
def test_a_server_killed_at_many_operations_goes_on_to_the_same_end(which, tmp_path):
    method, there = METHODS[which], sites(METHODS[which])
    link = Weather(there)
    undisturbed = serve(method, link, Fragile(tmp_path / "undisturbed", link.fuse))
    for operations in range(3, link.fuse.burnt, link.fuse.burnt // 5):
        path = tmp_path / f"{operations}"
        link = Weather(there, fuse=Fuse(operations))
        with pytest.raises(Killed):
            serve(method, link, Fragile(path, link.fuse))
        link.fuse = Fuse()
        result = serve(method, link, Fragile(path, link.fuse))
        state = result.state
        product = functools.reduce(operator.mul, (factor.natural for factor in state.factors), state.prior_now)
        np.testing.assert_allclose(state.posterior.precision, product.precision, rtol=1e-12)
        # answers that were under way may come in another order; a hundred rounds then end as near to the maximum
        np.testing.assert_allclose(values(result), values(undisturbed), rtol=1e-8 if "sequential" in which else 1e-4)
