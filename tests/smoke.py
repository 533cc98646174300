"""A short run of every solver and schedule, of a network, of learning, and the demo: `python tests/smoke.py`.

`make versions` runs it with the oldest and the newest versions of Python and of what partita needs.
"""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiling is nearly all the work

import jax
import numpy as np
import optax

import partita as pt

TOLERANCE = 0.05
"""In nats: how far from the best free energy a solver may end; each stops when it gains a thousandth or less."""

CLIMBING = {
    "newton": pt.Newton(),
    "lbfgs": pt.solvers.LBFGS(),
    "adam": pt.Gradient(optax.adam, learning_rate=0.05),
    "fixed point": pt.solvers.FixedPoint(),
    "blockwise": pt.solvers.Blockwise(pt.solvers.LBFGS(), (("precision_mean",), ("precision",))),
}
QUIET = pt.Monitor(progress=False)
MATCHING = {
    "power EP": pt.solvers.PowerEP(),
    "moments": pt.solvers.MomentMatching(),
    "alpha": pt.solvers.AlphaDivergence(),
}


def regression() -> tuple[pt.Table, np.ndarray]:
    """Rows with an intercept and one covariate, and which of two clients each belongs to."""
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(100), rng.normal(size=100)]
    y = (rng.random(100) < 1 / (1 + np.exp(-x @ [0.5, 1.0]))).astype(float)
    return pt.Table(x, y), np.arange(100) % 2


def main() -> None:
    """Runs everything; what does not work raises an error."""
    jax.config.update("jax_enable_x64", True)
    packages = ("jax", "jaxlib", "equinox", "jaxtyping", "optax", "numpy", "scipy", "typer")
    found = ", ".join(f"{name} {version(name)}" for name in packages)
    print(f"Python {sys.version.split()[0]}, partita {pt.__version__}, {found}", flush=True)

    table, owner = regression()
    clients = pt.split(table, [np.flatnonzero(owner == k) for k in (0, 1)])
    model, prior = pt.LogisticRegression(), pt.FullGaussian.standard_normal(2)
    best = pt.methods.fit("sequential", model, prior, clients.pooled(), rounds=2).free_energy

    for name, solver in CLIMBING.items():
        result = pt.run(pt.methods.sequential(solver), model, prior, clients, rounds=10, monitor=QUIET)
        assert abs(result.free_energy - best) < TOLERANCE, (name, result.free_energy, best)
    for name, solver in MATCHING.items():
        result = pt.run(pt.methods.sequential(solver), model, prior, clients, rounds=10, monitor=QUIET)
        assert best < result.log_evidence < best + 1, (name, result.log_evidence, best)
    for name in ("synchronous", "asynchronous", "global_vi", "bayesian_admm", "double_loop"):
        result = pt.methods.fit(name, model, prior, clients, rounds=5, monitor=QUIET)
        assert np.isfinite(result.free_energy), name
    learned = pt.methods.fit("sequential", model, prior, clients, learn=["prior_scale"], rounds=10, monitor=QUIET)
    assert learned.free_energy > best - TOLERANCE, (learned.free_energy, best)

    exact = pt.run(pt.methods.sequential(pt.Conjugate()), pt.LinearRegression(), prior, clients, rounds=2)
    precision = np.eye(2) + table.x.T @ table.x
    expected = np.linalg.solve(precision, table.x.T @ table.y)
    np.testing.assert_allclose(exact.posterior.q.mean, expected, rtol=1e-8)

    network = pt.models.NetworkClassifier((2, 4, 2), expectation=pt.expectations.LocalReparameterisation(4))
    gaussian = pt.MeanFieldGaussian.standard_normal(network.template())
    adam = pt.Gradient(optax.adam, max_steps=50, batch_size=10)
    result = pt.run(pt.methods.sequential(adam), network, gaussian, clients, rounds=1, monitor=QUIET)
    assert result.posterior.predict_proba(table.x[:3], how="monte_carlo").shape == (3, 2)

    with tempfile.TemporaryDirectory() as folder:
        demo = ["demo", "--rows", "500", "--communications", "20", "--output", folder]
        subprocess.run([sys.executable, "-m", "partita", *demo], check=True, stdout=subprocess.DEVNULL)
    print("Everything ran.")


if __name__ == "__main__":
    main()
