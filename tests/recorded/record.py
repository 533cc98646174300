"""Writes the numbers of all runs to `numbers.npz`, or compares them with the file.

python tests/recorded/record.py                          # records
python tests/recorded/record.py --compare                # within 1e-12 of each array's largest entry
python tests/recorded/record.py --compare --tolerance 0  # bit for bit
"""

import argparse
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
NUMBERS = HERE / "numbers.npz"
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]
    import conftest  # noqa: F401  the flags of JAX and XLA with which tests run

import numpy as np  # noqa: E402

from recorded.runs import RUNS  # noqa: E402


def write(numbers, path=NUMBERS):
    """Writes dicts of arrays by run: a vector for each, and what it consists of; a file for every array is large."""
    arrays = {}
    for run, found in numbers.items():
        arrays[run] = np.concatenate([array.ravel().astype(float) for array in found.values()])
        contents = [[name, array.dtype.str, list(array.shape)] for name, array in found.items()]
        arrays[f"{run} contents"] = np.frombuffer(json.dumps(contents).encode(), np.uint8)
    np.savez_compressed(path, **arrays)


def read(path=NUMBERS):
    """What was written."""
    numbers = {}
    with np.load(path) as file:
        for run in (name for name in file.files if not name.endswith(" contents")):
            contents, place, numbers[run] = json.loads(file[f"{run} contents"].tobytes()), 0, {}
            for name, kind, shape in contents:
                size = int(np.prod(shape))
                numbers[run][name] = file[run][place : place + size].astype(kind).reshape(shape)
                place += size
    return numbers


def apart(found, recorded):
    """The largest absolute difference of two arrays, and the same relative to the largest entry; infinite for others.

    What is infinite or no number is equal to itself.
    """
    if found.shape != recorded.shape or found.dtype != recorded.dtype:
        return np.inf, np.inf
    found, recorded = found.astype(float), recorded.astype(float)
    same = (found == recorded) | (np.isnan(found) & np.isnan(recorded))
    if same.all():
        return 0.0, 0.0
    if not np.isfinite([found[~same], recorded[~same]]).all():
        return np.inf, np.inf
    absolute = np.abs(found[~same] - recorded[~same]).max()
    largest = np.abs(recorded[np.isfinite(recorded)]).max()
    return absolute, absolute / largest if largest > 0 else np.inf


def differences(found, recorded):
    """For every array of a run, also of those that only one has, how far it is from the recorded one."""
    nothing = np.empty(0, object)
    names = dict.fromkeys([*recorded, *found])
    return {name: apart(found.get(name, nothing), recorded.get(name, nothing)) for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="compare with the file instead of writing it")
    parser.add_argument("--tolerance", type=float, default=1e-12, help="relative to the largest entry of an array")
    parser.add_argument("--only", nargs="+", default=[], metavar="RUN", help="compare or record these runs")
    options = parser.parse_args()
    started, found = time.process_time(), {}
    recorded = read() if options.compare else {}
    failed = sorted(recorded.keys() - {run.__name__ for run in RUNS})
    for name in failed:
        print(f"{name} is recorded and not run")
    for run in RUNS:
        name, began = run.__name__, time.process_time()
        if options.only and name not in options.only:
            continue
        found[name] = run()
        seconds = f"{time.process_time() - began:.1f} s"
        if not options.compare:
            print(f"{name}: {len(found[name])} arrays, {seconds}")
            continue
        away = differences(found[name], recorded.get(name, {}))
        (absolute, _), (_, relative) = (max(away.values(), key=lambda pair, k=k: pair[k]) for k in (0, 1))
        print(f"{name}: absolute {absolute:.3g}, relative {relative:.3g}, {seconds}")
        beyond = {which: pair for which, pair in away.items() if pair[1] > options.tolerance}
        for which, pair in beyond.items():
            print(f"    {which}: absolute {pair[0]:.3g}, relative {pair[1]:.3g}")
        failed += [name] if beyond else []
    if not options.compare:
        write((read() if options.only else {}) | found)
        print(f"{NUMBERS.stat().st_size / 1000:.0f} kB")
    print(f"{time.process_time() - started:.0f} s of CPU")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
