"""One mean-field step of a 784-200-10 ReLU network here, in an eager PyTorch loop and in NumPyro, in one run.

All take Adam's step on the same free energy (prior N(0, 1), mini-batches of 512 of 6,000 rows) from the same tight
start, with 1 and 10 samples, on one thread and on two:

- partita: `Gradient` solves a `Problem`, with local reparameterisation and with drawn weights.
- PyTorch: an eager loop with local reparameterisation, `F.linear` and the fused Adam, in two versions: with the input
  repeated for every sample, as most Bayesian layers do, and with the first layer's mean and variance shared by all.
- NumPyro: SVI with `AutoNormal`, compiled as one loop. It draws weights, so a sample takes one product of matrices for
  a layer where local reparameterisation takes two, but samples share none. Of `Trace_ELBO` and `TraceMeanField_ELBO`,
  with and without vectorised particles, the fastest counts.

PyTorch and NumPyro draw each batch with replacement, which costs least, and noise for every sample; here every epoch
visits each row once, and local noise comes in antithetic pairs. Beside the times stands the machine's rate: the fastest
product of matrices at the step's own shapes, by NumPy, JAX or PyTorch.

Threads are set before anything is imported: each (library, threads) is a process of its own, pinned to as many cores,
and rounds of them are interleaved. A time a step is the difference of a long and a short run, so constant costs cancel.
First of all gradients are compared: with PyTorch's for the same noise, and with NumPyro's on average.

    python benchmarks/network_step.py [--rounds 5] [--json]
"""

import argparse
import importlib.metadata
import itertools
import json
import math
import os
import subprocess
import sys
import time

import numpy as np

WIDTHS = (784, 200, 10)
ROWS, BATCH = 6000, 512
EPOCH = math.ceil(ROWS / BATCH)
RATE, VARIANCE = 2e-3, 1e-3
SAMPLES, THREADS = (1, 10), (1, 2)
SECONDS, REPEATS = 0.5, 3
"""Minimum duration of the long run of a timing, and number of timings per case and process."""

OURS, WEIGHTS = "partita", "partita, weights drawn"
REPEATED, SHARED = "PyTorch, input repeated", "PyTorch, first layer shared"
ESTIMATORS = ("Trace_ELBO", "TraceMeanField_ELBO")

MAX_GRADIENT_ERROR = 1e-4
"""Maximum relative difference of gradients for the same noise."""
DRAWS = 100
"""Number of gradients of 10 samples each that are averaged where the noise cannot be the same."""
MAX_Z, MAX_STANDARD_ERROR = 4.0, 0.25
"""Maximum difference of these averages in standard errors, and maximum standard error; see `average_errors`."""
LEAVES = tuple(
    f"{part} of {kind} {index}" for part in ("mean", "log sd") for index in (0, 1) for kind in ("weight", "bias")
)


def problem_data():
    """The rows, and the common start of all libraries: the means of each layer's weight and bias."""
    random = np.random.default_rng(0)
    x = random.random((ROWS, WIDTHS[0]), dtype=np.float32)
    y = random.integers(0, WIDTHS[-1], ROWS)
    means = [
        tuple(random.uniform(-0.1, 0.1, shape).astype(np.float32) for shape in ((n, m), (m,)))
        for n, m in itertools.pairwise(WIDTHS)
    ]
    return x, y, means


def seconds(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def step_seconds(run):
    """Timings of a step of `run(steps)`, each the mean over whole epochs."""

    def epochs_seconds(epochs):
        return seconds(run, 1 + epochs * EPOCH) - seconds(run, 1)

    run(1)
    epochs = max(1, math.ceil(SECONDS / max(epochs_seconds(1), 1e-3)))
    return [epochs_seconds(epochs) / (epochs * EPOCH) for _ in range(REPEATS)]


def multiplication_rate(array, prepared=lambda function: function):
    """A library's best GFLOP/s at the first layer's product, that for its weights' gradient, and their transposes."""
    inputs, units = WIDTHS[:2]
    x, weight, slope = (
        array(np.ones(shape, np.float32)) for shape in ((BATCH, inputs), (inputs, units), (BATCH, units))
    )
    products = (
        (lambda left, right: left @ right, weight),
        (lambda left, right: right.T @ left.T, weight),
        (lambda left, right: left.T @ right, slope),
        (lambda left, right: right.T @ left, slope),
    )
    times = []
    for function, right in products:
        product = prepared(function)
        product(x, right)
        times.append(np.median([seconds(product, x, right) for _ in range(50)]))
    return 2e-9 * BATCH * inputs * units / min(times)


def partita_problem(x, y, means, samples, weight=1.0, kind=None, weights=False):
    import jax.numpy as jnp

    import partita as pt
    from partita.expectations import LocalReparameterisation, MonteCarlo
    from partita.families.factor import Factor
    from partita.local.objective import Problem
    from partita.models import NetworkClassifier, Table

    expectation = MonteCarlo(samples) if weights else LocalReparameterisation(samples)
    model = (kind or NetworkClassifier)(WIDTHS, expectation=expectation)
    prior = pt.MeanFieldGaussian.standard_normal(model.template())
    theta = tuple({"weight": weight.T, "bias": bias} for weight, bias in means)
    start = pt.MeanFieldGaussian.from_mean_sd(theta, math.sqrt(VARIANCE))
    shard = pt.federate([Table(x, y.astype(np.float32))]).shards[0]
    return Problem(model, shard, Factor.of(prior), jnp.asarray(weight), start, jnp.asarray(1.0))


def partita_run(samples, weights):
    import jax
    import optax

    from partita.local.solvers import Gradient
    from partita.numerics.compiled import Compiled

    problem = partita_problem(*problem_data(), samples, weights=weights)
    solve = Compiled(lambda solver, problem, key: solver.solve(problem, key))

    def run(steps):
        solver = Gradient(optax.adam, RATE, max_steps=steps, patience=10**6, batch_size=BATCH)
        solution = solve(solver, problem, jax.random.key(0))
        if int(solution.steps) != steps:
            raise SystemExit(f"partita took {solution.steps} steps where {steps} were to be timed.")

    return run


def torch_layers(means):
    """Each layer's parameters: mean and log standard deviation of the weight, then of the bias."""
    import torch

    def parameters(mean):
        log_sd = np.full_like(mean, math.log(VARIANCE) / 2)
        return [torch.tensor(value, requires_grad=True) for value in (mean, log_sd)]

    return [parameters(weight.T) + parameters(bias) for weight, bias in means]


def torch_loss(layers, x, y, noise, repeated):
    """The negative free energy, given each layer's noise of shape (samples, rows, width)."""
    from torch.nn import functional

    samples = len(noise[0])
    h = x.expand(samples, *x.shape) if repeated else x
    divergence = 0.0
    for index, ((weight, weight_log_sd, bias, bias_log_sd), layer_noise) in enumerate(zip(layers, noise, strict=True)):
        h = h if index == 0 else h.relu()
        weight_variance, bias_variance = (2 * weight_log_sd).exp(), (2 * bias_log_sd).exp()
        variance = functional.linear(h.square(), weight_variance, bias_variance)
        h = functional.linear(h, weight, bias) + variance.sqrt() * layer_noise
        divergence = divergence + ((weight_variance + weight.square() - 1) / 2 - weight_log_sd).sum()
        divergence = divergence + ((bias_variance + bias.square() - 1) / 2 - bias_log_sd).sum()
    loss = functional.cross_entropy(h.flatten(0, 1), y.repeat(samples), reduction="sum") / samples
    return ROWS / len(x) * loss + divergence


def torch_run(samples, repeated):
    import torch

    x, y, means = problem_data()
    x, y, layers = torch.tensor(x), torch.tensor(y), torch_layers(means)
    optimiser = torch.optim.Adam([parameter for layer in layers for parameter in layer], lr=RATE, fused=True)

    def run(steps):
        for _ in range(steps):
            rows = torch.randint(0, ROWS, (BATCH,))
            noise = [torch.randn(samples, BATCH, width) for width in WIDTHS[1:]]
            loss = torch_loss(layers, x[rows], y[rows], noise, repeated)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return run


def numpyro_inference(means, samples, estimator, vectorised):
    """SVI in the coordinates that all libraries use here: means and log standard deviations."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro import infer
    from numpyro.distributions import constraints

    def model(x, y):
        h = x
        for index, (weight, bias) in enumerate(means):
            w = numpyro.sample(f"weight{index}", dist.Normal(0, 1).expand(weight.shape).to_event(2))
            b = numpyro.sample(f"bias{index}", dist.Normal(0, 1).expand(bias.shape).to_event(1))
            h = (h if index == 0 else jax.nn.relu(h)) @ w + b
        with numpyro.plate("rows", len(x)), numpyro.handlers.scale(scale=ROWS / len(x)):
            numpyro.sample("y", dist.Categorical(logits=h), obs=y)

    values = {f"weight{index}": weight for index, (weight, _) in enumerate(means)}
    values |= {f"bias{index}": bias for index, (_, bias) in enumerate(means)}
    start = infer.init_to_value(values=values)
    guide = infer.autoguide.AutoNormal(model, init_loc_fn=start, init_scale=math.sqrt(VARIANCE))
    guide.scale_constraint = constraints.positive
    return infer.SVI(model, guide, optax.adam(RATE), getattr(infer, estimator)(samples, vectorised))


def numpyro_run(samples, estimator, vectorised):
    import jax

    x, y, means = problem_data()
    inference = numpyro_inference(means, samples, estimator, vectorised)
    x, y = jax.numpy.asarray(x), jax.numpy.asarray(y)
    start = inference.init(jax.random.key(0), x[:BATCH], y[:BATCH])

    @jax.jit
    def loop(state, steps, key, x, y):
        def body(index, state):
            rows = jax.random.randint(jax.random.fold_in(key, index), (BATCH,), 0, ROWS)
            return inference.update(state, x[rows], y[rows])[0]

        return jax.lax.fori_loop(0, steps, body, state)

    return lambda steps: jax.block_until_ready(loop(start, steps, jax.random.key(1), x, y))


def measure_partita(threads):
    import jax

    def blocking(function):
        compiled = jax.jit(function)
        return lambda left, right: compiled(left, right).block_until_ready()

    versions = {OURS: False, WEIGHTS: True}
    steps = {
        samples: {name: step_seconds(partita_run(samples, weights)) for name, weights in versions.items()}
        for samples in SAMPLES
    }
    rates = {
        "NumPy": multiplication_rate(np.asarray),
        "JAX": multiplication_rate(jax.numpy.asarray, blocking),
    }
    return {"steps": steps, "rates": rates}


def measure_torch(threads):
    import torch

    torch.set_num_threads(threads)
    versions = {REPEATED: True, SHARED: False}
    steps = {
        samples: {name: step_seconds(torch_run(samples, repeated)) for name, repeated in versions.items()}
        for samples in SAMPLES
    }
    return {"steps": steps, "rates": {"PyTorch": multiplication_rate(torch.tensor)}}


def measure_numpyro(threads):
    steps = {samples: {} for samples in SAMPLES}
    for samples in SAMPLES:
        for estimator in ESTIMATORS:
            for vectorised in (True, False) if samples > 1 else (True,):
                name = f"NumPyro, {estimator}" + (", vectorised" if vectorised and samples > 1 else "")
                steps[samples][name] = step_seconds(numpyro_run(samples, estimator, vectorised))
    return {"steps": steps, "rates": {}}


def check(threads):
    """Differences of the other libraries' gradients from ours at the same q, on the same batch."""
    x, y, means = problem_data()
    x, y = x[:BATCH], y[:BATCH]
    return {
        "same_noise": {samples: same_noise_errors(x, y, means, samples) for samples in SAMPLES},
        "averages": {estimator: average_errors(x, y, means, estimator) for estimator in ESTIMATORS},
    }


def same_noise_errors(x, y, means, samples):
    """The relative difference of PyTorch's gradient from ours for each leaf, with the noise that we drew."""
    import jax
    import torch

    from partita.models import NetworkClassifier

    drawn = []

    class RecordingClassifier(NetworkClassifier):
        """A classifier that records its noise."""

        def predictor_at(self, shared, noise):
            jax.debug.callback(lambda value: drawn.append(np.array(value)), noise)
            return super().predictor_at(shared, noise)

    problem = partita_problem(x, y, means, samples, ROWS / BATCH, RecordingClassifier)
    _, ours = jax.jit(value_and_leaves(problem, problem.free_energy))(jax.random.key(0))
    jax.effects_barrier()
    if len(drawn) != samples:
        raise SystemExit(f"A gradient of {samples} samples was seen to draw noise {len(drawn)} times.")
    noise = [torch.tensor(part) for part in np.split(np.stack(drawn).swapaxes(1, 2), np.cumsum(WIDTHS[1:-1]), axis=2)]
    errors = {}
    for name, repeated in ((REPEATED, True), (SHARED, False)):
        layers = torch_layers(means)
        torch_loss(layers, torch.tensor(x), torch.tensor(y), noise, repeated).backward()
        theirs = [
            -layer[index].grad.numpy().T for offset in (0, 1) for layer in layers for index in (offset, offset + 2)
        ]
        errors[name] = {
            leaf: float(np.linalg.norm(mine - other) / np.linalg.norm(other))
            for leaf, mine, other in zip(LEAVES, ours, theirs, strict=True)
        }
    return errors


def average_errors(x, y, means, estimator):
    """How far NumPyro's free energy, and each leaf of its gradient, lies from ours on average.

    NumPyro draws weights where we draw pre-activations, so single gradients differ and only their expectations agree.
    Leaves are compared along the gradient of the log-likelihood, where noise in so many dimensions does not hide a
    difference. `z` is the difference in standard errors; `resolution` a standard error as a share of what the
    log-likelihood contributes.
    """
    import jax
    import jax.numpy as jnp

    samples = SAMPLES[-1]
    problem = partita_problem(x, y, means, samples, ROWS / BATCH)
    inference = numpyro_inference(means, samples, estimator, False)
    coordinates = inference.optim.get_params(inference.init(jax.random.key(0), x, y).optim_state)
    sites = [
        f"{kind}{index}_auto_{part}" for part in ("loc", "scale") for index in (0, 1) for kind in ("weight", "bias")
    ]

    def numpyro_value_and_leaves(key):
        def free_energy(coordinates):
            parameters = inference.constrain_fn(coordinates)
            return -inference.loss.loss(key, parameters, inference.model, inference.guide, x, y)

        value, gradient = jax.value_and_grad(free_energy)(coordinates)
        return value, [gradient[site] for site in sites]

    likelihood, slopes = jax.jit(value_and_leaves(problem, problem.ell))(jax.random.key(0))
    sizes = np.array([abs(likelihood), *map(jnp.linalg.norm, slopes)])

    def draws(function, seed):
        def figures(key):
            value, leaves = function(key)
            return jnp.stack([value, *map(jnp.vdot, slopes, leaves)])

        keys = jax.random.split(jax.random.key(seed), DRAWS)
        return np.asarray(jax.jit(lambda keys: jax.lax.map(figures, keys))(keys), float) / [1.0, *sizes[1:]]

    ours, theirs = draws(value_and_leaves(problem, problem.free_energy), 1), draws(numpyro_value_and_leaves, 2)
    error = np.sqrt((ours.var(0, ddof=1) + theirs.var(0, ddof=1)) / DRAWS)
    z, resolution = (ours.mean(0) - theirs.mean(0)) / error, error / sizes
    return {
        name: {"z": float(z[index]), "resolution": float(resolution[index])}
        for index, name in enumerate(("free energy", *LEAVES))
    }


def value_and_leaves(problem, objective):
    """A function from a key to an objective of q and to its gradient at the start, in the order of `LEAVES`.

    Weights are given with their inputs first, as the means of `problem_data` are.
    """
    import jax

    def function(key):
        value, gradient = jax.value_and_grad(lambda c: objective(problem.start.with_unconstrained(c), key))(
            problem.start.unconstrained()
        )
        return value, [layer[name].T for part in gradient for layer in part for name in ("weight", "bias")]

    return function


WORK = {"partita": measure_partita, "torch": measure_torch, "numpyro": measure_numpyro, "check": check}


def in_process(work, threads):
    """The result of a measurement in a new process pinned to `threads` cores."""
    cores = os.sched_getaffinity(0)
    variables = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    os.sched_setaffinity(0, sorted(cores)[:threads])
    try:
        command = [sys.executable, __file__, "--work", work, "--threads", str(threads)]
        done = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True)
    finally:
        os.sched_setaffinity(0, cores)
    if done.returncode:
        raise SystemExit(f"{work} on {threads} threads failed: see above.")
    return json.loads(done.stdout)


def verified_errors():
    """The errors of the other libraries' gradients; exits if one is too large."""
    errors = in_process("check", max(THREADS))
    for samples, versions in errors["same_noise"].items():
        for version, leaves in versions.items():
            for leaf, error in leaves.items():
                if not error <= MAX_GRADIENT_ERROR:
                    raise SystemExit(f"{version}, {samples} samples: the gradient in {leaf} differs by {error:.1e}.")
    for estimator, figures in errors["averages"].items():
        for name, figure in figures.items():
            if not (abs(figure["z"]) <= MAX_Z and figure["resolution"] <= MAX_STANDARD_ERROR):
                raise SystemExit(f"NumPyro's {estimator}, {name}: differs from ours, or is not known well: {figure}.")
    return errors


def needed_gigaflops(samples):
    """The multiplications and additions of a step with local reparameterisation, in the products of matrices alone.

    A layer needs its mean and variance and the gradients in both; later ones, for each sample, also that in its input,
    through both.
    """
    first, later = BATCH * WIDTHS[0] * WIDTHS[1], BATCH * WIDTHS[1] * WIDTHS[2]
    return 2e-9 * (4 * first + 6 * samples * later)


def quartiles(values):
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "low": float(low), "high": float(high)}


def summary(rounds, threads):
    """Summarises the rounds for one number of threads; ratios and shares are computed within a round."""
    best_rates = np.array([max(row["rates"].values()) for row in rounds])
    result = {
        "threads": threads,
        "gigaflops": quartiles(best_rates),
        "gigaflops_by": {name: quartiles([row["rates"][name] for row in rounds]) for name in rounds[0]["rates"]},
        "samples": {},
    }
    for samples in SAMPLES:
        names = rounds[0]["steps"][str(samples)]
        times = {name: np.array([np.median(row["steps"][str(samples)][name]) for row in rounds]) for name in names}
        rates = needed_gigaflops(samples) / times[OURS]
        fastest = min((name for name in names if name.startswith("NumPyro")), key=lambda name: np.median(times[name]))
        result["samples"][samples] = {
            "step_seconds": {name: quartiles(values) for name, values in times.items()},
            "ratio": {name: quartiles(values / times[OURS]) for name, values in times.items() if name != OURS},
            "fastest_numpyro": fastest,
            "numpyro_to_weights": quartiles(times[fastest] / times[WEIGHTS]),
            "gigaflops": quartiles(rates),
            "share": quartiles(rates / best_rates),
        }
    return result


def verdicts(summaries):
    """The requirements for the step, the measured figures, and whether they meet the requirement."""
    torch, numpyro, weights, share = {}, {}, {}, {}
    for row in summaries:
        threads = f"{row['threads']} threads" if row["threads"] > 1 else "1 thread"
        for name in (REPEATED, SHARED):
            torch[f"{name}, {threads}"] = row["samples"][10]["ratio"][name]["median"]
        for samples, case in row["samples"].items():
            numpyro[f"S = {samples}, {threads}"] = case["ratio"][case["fastest_numpyro"]]["median"]
            weights[f"S = {samples}, {threads}"] = case["numpyro_to_weights"]["median"]
        share[threads] = row["samples"][1]["share"]["median"]
    asked = (
        ("at least 3 times as fast as eager PyTorch at S = 10", torch, 3.0),
        ("not slower than NumPyro, drawing weights as it does", weights, 1.0),
        ("not slower than NumPyro, with local reparameterisation", numpyro, 1.0),
        ("at least 40 % of the rate of matrix multiplication at S = 1", share, 0.4),
    )
    return [
        {"asked": text, "figures": figures, "holds": all(figure >= least for figure in figures.values())}
        for text, figures, least in asked
    ]


def show(report):
    def spread(value, scale=1.0):
        return f"{scale * value['median']:7.2f} ({scale * value['low']:.2f} to {scale * value['high']:.2f})"

    print(f"784-200-10 network, mini-batches of {BATCH} of {ROWS:,} rows; medians of {report['rounds']} (quartiles)")
    print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    for row in report["threads"]:
        print(f"\nthreads: {row['threads']}; matrix multiplication {spread(row['gigaflops'])} GFLOP/s")
        for samples, case in row["samples"].items():
            print(f"  S = {samples:<42}{'ms a step':28}times ours")
            for name, value in case["step_seconds"].items():
                ratio = spread(case["ratio"][name]) if name != OURS else ""
                chosen = " *" if name == case["fastest_numpyro"] else ""
                print(f"    {name + chosen:44}{spread(value, 1e3):28}{ratio}".rstrip())
            print(f"    ours in products of matrices: {spread(case['gigaflops'])} GFLOP/s, ", end="")
            print(f"{spread(case['share'], 100).strip()} % of the machine's")
    print("\n* the fastest of NumPyro's, which counts")
    same = [e for versions in report["check"]["same_noise"].values() for v in versions.values() for e in v.values()]
    z = [abs(figure["z"]) for figures in report["check"]["averages"].values() for figure in figures.values()]
    print(f"gradients: PyTorch's for the same noise within {max(same):.0e} of the norm; ", end="")
    print(f"NumPyro's within {max(z):.1f} standard errors, over {DRAWS} draws of {SAMPLES[-1]} samples each")
    for verdict in report["verdicts"]:
        print(f"{'holds' if verdict['holds'] else 'FALLS SHORT'}: {verdict['asked']}: ", end="")
        print("; ".join(f"{name} {figure:.2f}" for name, figure in verdict["figures"].items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(WORK[arguments.work](arguments.threads)))
        return
    if len(os.sched_getaffinity(0)) < max(THREADS):
        raise SystemExit(f"The benchmark compares {max(THREADS)} threads: give it as many cores.")

    errors = verified_errors()
    rounds = {threads: [] for threads in THREADS}
    for index in range(arguments.rounds):
        for threads in THREADS:
            print(f"round {index + 1} of {arguments.rounds}, threads: {threads}", file=sys.stderr)
            found = [in_process(library, threads) for library in ("partita", "torch", "numpyro")]
            steps = {
                str(samples): {name: times for part in found for name, times in part["steps"][str(samples)].items()}
                for samples in SAMPLES
            }
            rates = {name: rate for part in found for name, rate in part["rates"].items()}
            rounds[threads].append({"steps": steps, "rates": rates})
    summaries = [summary(rounds[threads], threads) for threads in THREADS]
    report = {
        "rounds": arguments.rounds,
        "versions": {name: importlib.metadata.version(name) for name in ("partita", "jax", "torch", "numpyro")},
        "check": errors,
        "threads": summaries,
        "verdicts": verdicts(summaries),
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


if __name__ == "__main__":
    main()
