import collections
import gc
import os
import pathlib

# Nearly every test compiles a program and runs it for milliseconds: most of their time would go into optimising it.
# The older emitters and one piece a program compile three times as fast as XLA's defaults do. It takes a quarter less
# again without the passes that rewrite loops, and without the verifier between passes.
# `make slow`, where programs run for minutes, sets the variable to nothing.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_enable_concurrency_optimized_scheduler=false --xla_cpu_copy_insertion_use_region_analysis=false"
    " --xla_disable_hlo_passes=hlo-verifier,simplify-while-loops,while-loop-invariant-code-motion"
    ",while-loop-constant-sinking",
)

os.environ.setdefault("PARTITA_PROGRAMS", "off")  # commands under test leave the user's folder alone

import jax
import pytest

from support.slow_cases import SLOW_CASES

jax.config.update("jax_enable_x64", True)

# Tracing makes many objects, few of them garbage.
gc.set_threshold(100_000, 20, 20)

LONGEST = (
    "tests/test_learning.py",
    "tests/tables/test_fit.py",
    "tests/test_adaptive.py",
    "tests/test_any_input.py",
    "tests/test_methods.py",
    "experiments/tests/test_runner.py",
    "tests/test_stream.py",
    "tests/tables/test_results.py",
    "tests/test_admission.py",
    "tests/federation/test_faults.py",
    "tests/tables/test_updates.py",
)
"""Files that take longest, which are begun first: at the end a long one would leave a worker without work."""

MAPS = 50_000
"""Mapped pieces of memory, of which Linux allows a process 65,530: compiled programs, some 3.5 each, crash beyond."""


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Forgets compiled programs after a file of tests, where there are many."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks the slow cases; one that is no longer there is an error, where its whole file was collected.

    The longest files come first.
    """
    found = collections.defaultdict(list)
    for item in items:
        for name in {item.nodeid, item.nodeid.partition("[")[0]}:
            found[name].append(item)
    files = {nodeid.partition("::")[0] for nodeid in found}
    gone = []
    for file in sorted(files & SLOW_CASES.keys()):
        for name in SLOW_CASES[file]:
            for item in found[f"{file}::{name}"]:
                item.add_marker(pytest.mark.slow)
            if not found[f"{file}::{name}"] and not any("::" in argument for argument in config.args):
                gone.append(f"{file}::{name}")
    if gone:
        raise pytest.UsageError(f"There is no {', no '.join(gone)}: mend tests/support/slow_cases.py.")
    rank = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONGEST)))
