"""What a round, an answer and a step cost with 100, 1,000 and 10,000 clients, and with a long history.

Every case runs in a process of its own, so that its memory is its own. Clients have 20 rows of a logistic regression of
five columns, with full covariance. An answer is one step of a run in which every client has answered twice, so that
each has a task and a factor of its own, and solvers take as many steps whatever the number of clients. A ledger writes
every answer, without waiting for the disk, whose speed is not partita's. The server's time is that of its thread, with
the ledger. A single answer is solved in another thread; those of a round, in batches, in the server's.

    python benchmarks/many_clients.py                 # everything
    python benchmarks/many_clients.py rounds answers  # some parts
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

COLUMNS, ROWS = 5, 20
SIZES = (100, 1_000, 10_000)
SCHEDULES = ("sequential", "asynchronous")
STEPS = (100, 1_000, 10_000, 100_000)


def clients(number, rows=ROWS):
    """The partition, each client with its own coefficients."""
    import numpy as np

    import partita as pt

    generator = np.random.default_rng(number)
    x = generator.normal(size=(number, rows, COLUMNS))
    beta = np.linspace(-1, 1, COLUMNS) + generator.normal(0, 0.3, (number, 1, COLUMNS))
    y = (generator.random((number, rows)) < 1 / (1 + np.exp(-(x * beta).sum(-1)))).astype(float)
    return pt.federate([pt.Table(*client) for client in zip(x, y, strict=True)])


def settings(number, schedule, ledger, folder, rows=ROWS):
    """What a run is given."""
    import partita as pt

    method = getattr(pt.methods, schedule)(pt.Newton(tolerance=1e-4))
    store = pt.Ledger(pathlib.Path(folder) / "ledger", durable=False) if ledger else None
    return method, pt.LogisticRegression(), pt.FullGaussian.standard_normal(COLUMNS), clients(number, rows), store


def timed(number, schedule, ledger, steps, warm, every=0, rows=ROWS):
    """Seconds of processor and clock of the last steps of a run, each, after those that warm up."""
    import jax

    import partita as pt

    jax.config.update("jax_enable_x64", True)
    began, stamps, sizes = time.perf_counter(), [], []

    def stamp(state, row):
        stamps.append((time.process_time(), time.perf_counter(), time.thread_time()))
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    with tempfile.TemporaryDirectory() as folder:
        method, model, prior, parts, store = settings(number, schedule, ledger, folder, rows)
        made = time.perf_counter() - began
        answers = steps + warm if schedule != "synchronous" else (steps + warm) * number
        monitor = pt.Monitor(every=every, progress=False, callbacks=(stamp,))
        kept = {"store": store} if store else {}
        pt.run(method, model, prior, parts, rounds=answers / number, tolerance=None, monitor=monitor, **kept)
    if len(stamps) < warm + 2:
        raise SystemExit(f"The run ended after {len(stamps)} steps.")
    (cpu, clock, server), (cpu_end, clock_end, server_end) = stamps[warm - 1], stamps[-1]
    timed_steps = len(stamps) - warm
    return {
        "processor": (cpu_end - cpu) / timed_steps,
        "clock": (clock_end - clock) / timed_steps,
        "server": (server_end - server) / timed_steps,
        "grown": (sizes[-1] - sizes[warm - 1]) / timed_steps * 1024,
        "peak": sizes[-1],
        "made": made,
        "total": time.perf_counter() - began,
    }


def flat(steps):
    """Seconds a step of a run of few clients, for a tenth of its steps up to each of these."""
    import jax

    import partita as pt

    jax.config.update("jax_enable_x64", True)
    stamps, sizes = [], []

    def stamp(state, row):
        stamps.append(time.process_time())
        if len(stamps) % 1000 == 0:
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    monitor = pt.Monitor(every=0, progress=False, callbacks=(stamp,))
    with tempfile.TemporaryDirectory() as folder:
        method, model, prior, parts, store = settings(10, "asynchronous", True, folder)
        pt.run(method, model, prior, parts, rounds=steps / 10, tolerance=None, monitor=monitor, store=store)
    found = {f"step {at:,}": (stamps[at - 1] - stamps[at - at // 10 - 1]) / (at // 10) for at in STEPS if at <= steps}
    return found | {"MB at step 1,000": sizes[0], "MB at the end": sizes[-1]}


def child(call, seconds):
    """A call of this file in a process of its own."""
    command = [sys.executable, __file__, "--call", call]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        return None
    return json.loads(done.stdout.splitlines()[-1])


def rounds(sizes, seconds):
    """A synchronous round."""
    print(f"{'round':>14} {'clients':>8} {'ledger':>7} {'clock s':>9} {'processor s':>12} {'peak MB':>8}")
    for number in sizes:
        for ledger in (False, True):
            row = child(f"timed({number}, 'synchronous', {ledger}, 3, 2)", seconds)
            shown = (
                "not within the time"
                if row is None
                else f"{row['clock']:9.2f} {row['processor']:12.2f} {row['peak']:8.0f}"
            )
            print(f"{'':>14} {number:8,} {'yes' if ledger else 'no':>7} {shown}", flush=True)


def answers(sizes, seconds):
    """One answer, in turn and on arrival."""
    titles = f"{'clock ms':>9} {'processor ms':>12} {'server ms':>10} {'KB an answer':>13} {'peak MB':>8}"
    print(f"{'answer':>14} {'clients':>8} {'ledger':>7} {titles}")
    for schedule in SCHEDULES:
        for ledger in (False, True):
            first = None
            for number in sizes:
                row = child(f"timed({number}, {schedule!r}, {ledger}, 600, {2 * number + 200})", seconds)
                if row is None:
                    print(f"{schedule:>14} {number:8,} {'yes' if ledger else 'no':>7} not within the time", flush=True)
                    continue
                first = first or row
                against = row["server"] / first["server"]
                print(
                    f"{schedule:>14} {number:8,} {'yes' if ledger else 'no':>7} {1e3 * row['clock']:9.2f} "
                    f"{1e3 * row['processor']:12.2f} {1e3 * row['server']:10.2f} {row['grown']:13.1f} "
                    f"{row['peak']:8.0f}   server {against:.2f} times that of {sizes[0]:,}",
                    flush=True,
                )


def one_row(seconds):
    """A hundred thousand clients of one row each."""
    for schedule, steps, warm in (("synchronous", 2, 1), ("asynchronous", 300, 100)):
        row = child(f"timed(100_000, {schedule!r}, False, {steps}, {warm}, rows=1)", seconds)
        print(f"100,000 clients of one row, {schedule}: {row}", flush=True)


def main():
    """Runs the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["rounds", "answers", "one_row", "history"])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--steps", type=int, default=STEPS[-1], help="how long the history becomes")
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long a case may take")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.call:
        print(json.dumps(eval(chosen.call)))
        return
    if "rounds" in chosen.parts:
        rounds(chosen.sizes, chosen.seconds)
    if "answers" in chosen.parts:
        answers(chosen.sizes, chosen.seconds)
    if "one_row" in chosen.parts:
        one_row(chosen.seconds)
    if "history" in chosen.parts:
        print(f"seconds a step with ledger, ten clients: {child(f'flat({chosen.steps})', 20 * chosen.seconds)}")


if __name__ == "__main__":
    main()
