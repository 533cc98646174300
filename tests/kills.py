"""Random faults of real processes during federations: whatever happens, the posterior is that of an undisturbed run.

    python tests/kills.py [--count 200] [--seed 0] [--folder build/kills]

A run has a server, two clients and a relay between them, and ten faults at random moments: `kill -9` and a stop of any
of them, clocks that jump by up to two hours, full disks. It must end at the posterior of a run in one process, to the
bit unless answers come in any order; what is resumed must not need a second try; and no process may be left. Runs that
ended well are kept in the folder, so that the command goes on where it was interrupted. Disks need the right to mount.
"""

import argparse
import collections
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from partita.federation import config
from partita.federation.rehearse import Rehearsal
from support import processes
from support.scene import CLIENTS, HANGS, LINK, SERVER, EndedError, Scene

METHODS = ("sequential", "synchronous", "asynchronous")
A_RUN = 10
"""Faults of a run."""
DAMPING = 0.5
"""Of every other run, so that it takes long; the rest has its method's default."""
TOLERANCE = 1e-3
"""Of asynchronous runs, in sds: each client's answer lies within 1e-10 nats, 1.4e-5 sds, of the posterior."""
TWO_HOURS = 7200.0
WRITTEN = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
"""Programs that take less to compile are not kept."""


def killed(name):
    """`kill -9`, and a new start after a while."""

    def fault(scene, generator):
        scene.kill(name)
        time.sleep(generator.exponential(0.5))
        scene.start(name)

    return fault


def stopped(name):
    """SIGSTOP, and SIGCONT after a while; of the link it is a network that swallows what is sent."""

    def fault(scene, generator):
        with scene.stopped(name):
            time.sleep(generator.exponential(2.0))

    return fault


def server_clock(scene, generator):
    """The server's clock jumps, and stays there."""
    scene.set_clock(SERVER, generator.uniform(-TWO_HOURS, TWO_HOURS))


def client_clock(scene, generator):
    """A client's clock is wrong until the client has said so."""
    name, said = str(generator.choice(CLIENTS)), "this machine's clock is"
    before = scene.said(name, said)
    scene.set_clock(name, generator.choice([-1.0, 1.0]) * generator.uniform(400.0, TWO_HOURS))
    try:
        scene.wait(lambda: scene.said(name, said) > before)
    finally:
        scene.set_clock(name, 0.0)


def server_disk(scene, generator):
    """The server's disk is full until the server has ended, which says what to do, unless all was written before."""
    with scene.full(SERVER):
        with contextlib.suppress(EndedError):
            scene.wait(lambda: False)
        if not scene.running[SERVER].returncode:
            raise EndedError
        assert "free some space" in scene.log(SERVER).read_text()[-600:], "the server does not say what to do"
    scene.start(SERVER)


def client_disk(scene, generator):
    """A client's disk is full until the client has said so."""
    name, said = str(generator.choice(CLIENTS)), "No space left on device"
    before = scene.said(name, said)
    with scene.full(name):
        scene.wait(lambda: scene.said(name, said) > before)


FAULTS = {f"{name} killed": killed(name) for name in (SERVER, LINK, *CLIENTS)}
FAULTS |= {f"{name} stopped": stopped(name) for name in (SERVER, LINK, *CLIENTS)}
FAULTS |= {"server's clock": server_clock, "a client's clock": client_clock}
DISKS = {"server's disk": server_disk, "a client's disk": client_disk}


def moment(scene, generator):
    """Waits for a random moment: after some more answers, or wherever a part stands in its start."""
    if generator.random() < 0.6:
        goal = scene.communications() + generator.integers(1, 4)
        scene.wait(lambda: scene.communications() >= goal)
        time.sleep(generator.uniform(0.0, 0.2))
    else:
        time.sleep(generator.exponential(1.0))
    if scene.ended:
        raise EndedError


def disturbed(scene, generator, faults, landed):
    """Lets faults happen until there are so many or the run has ended; adds the names of those before to `landed`."""
    kinds = FAULTS | (DISKS if scene.disks else {})
    with contextlib.suppress(EndedError):
        for kind in generator.choice(list(kinds), faults):
            moment(scene, generator)
            landed.append(str(kind))
            try:
                kinds[kind](scene, generator)
            except EndedError:
                landed.pop()
                raise
    scene.running[SERVER].wait(HANGS)


def settings(number):
    """A run's method and its damping."""
    return METHODS[number % len(METHODS)], None if number // len(METHODS) % 2 else DAMPING


def one_run(folder, seed, number, faults=A_RUN):
    """A run with its faults: what happened, and what is wrong, if anything is."""
    method, damping = settings(number)
    generator, landed, wrong = np.random.default_rng([seed, number]), [], ""
    with Scene(folder, method, damping) as scene:
        try:
            disturbed(scene, generator, faults, landed)
            if code := scene.running[SERVER].returncode:
                raise AssertionError(f"the server ended with {code}: {scene.log(SERVER).read_text()[-300:]}")
            rehearsal = Rehearsal.read(config.load(scene.study), scene.files)
            undisturbed = rehearsal.run().posterior.q
            compare(rehearsal.posterior(scene.study), undisturbed, exact=method != "asynchronous")
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
            for name in (SERVER, LINK, *CLIENTS):
                shutil.copy(scene.log(name), folder.with_suffix(f".{name}.txt"))
    if left := processes.of(folder):
        wrong += f" Processes are left: {left}."
    return {"number": number, "method": method, "damping": damping, "faults": landed, "wrong": wrong}


def compare(there, here, exact):
    """An AssertionError where two posteriors differ."""
    (far, far_second), (near, near_second) = there.moments(), here.moments()
    if exact:
        np.testing.assert_array_equal(far, near)
        np.testing.assert_array_equal(far_second, near_second)
    else:
        np.testing.assert_allclose((far - near) / here.sd, 0.0, atol=TOLERANCE)
        np.testing.assert_allclose(there.sd / here.sd, 1.0, rtol=TOLERANCE)


def warm(programs, number):
    """Keeps the programs of runs with these settings, by one without faults, which later ones only read."""
    programs.mkdir(exist_ok=True)
    mark = programs / "-".join(map(str, settings(number)))
    if not mark.exists():
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(programs), WRITTEN: "0"}
        with tempfile.TemporaryDirectory() as place:
            found = one_run(Path(place) / "run", 0, number, faults=0)
        if found["wrong"]:
            raise SystemExit(f"Without faults: {found}")
        mark.touch()
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(programs), WRITTEN: "1e9"}


def main() -> int:
    """Runs until so many faults have happened; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="faults in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("build/kills"), help="what was found, to go on from")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record = arguments.folder / f"{arguments.seed}.jsonl"
    done = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    done = [row for row in done if not row["wrong"]]
    known, number = {row["number"] for row in done}, 0
    while sum(len(row["faults"]) for row in done) < arguments.count:
        if number not in known:
            began = time.monotonic()
            warm(arguments.folder / "programs", number)
            with tempfile.TemporaryDirectory() as place:
                found = one_run(Path(place) / "run", arguments.seed, number)
                if found["wrong"]:
                    for path in Path(place).glob("run.*.txt"):
                        shutil.copy(path, arguments.folder / f"{arguments.seed}-{number}{path.suffixes[0]}.txt")
            with record.open("a") as file:
                file.write(json.dumps(found) + "\n")
            done.append(found)
            print(f"run {number}, {time.monotonic() - began:.0f} s: {json.dumps(found)}", flush=True)
        number += 1
    counts = collections.Counter(fault for row in done for fault in row["faults"])
    print(f"{sum(counts.values())} faults in {len(done)} runs: {dict(sorted(counts.items()))}")
    wrong = [row for row in done if row["wrong"]]
    print(f"{len(wrong)} runs went wrong." if wrong else "All ended at the undisturbed posterior; nothing was left.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
