"""Features of clinical time series: statistics of each variable in windows of the time in which it was measured."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partita.errors import InputError

# Whether the window begins with the first measurement or ends with the last, and its share of the time between them.
WINDOWS = {
    "all": ("first", 1.0),
    "first 10%": ("first", 0.1),
    "first 25%": ("first", 0.25),
    "first 50%": ("first", 0.5),
    "last 10%": ("last", 0.1),
    "last 25%": ("last", 0.25),
    "last 50%": ("last", 0.5),
}
STATISTICS = ("min", "max", "mean", "sd", "skew", "count")
_TOLERANCE = 1e-6


class Measurements(NamedTuple):
    """One entry a measurement, in any order: whose it is, of which variable, its time in hours and its value."""

    stay: np.ndarray
    variable: np.ndarray
    time: np.ndarray
    value: np.ndarray


def features(measurements: Measurements, stays: int, variables: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """42 features a variable for each stay, as in the benchmark of Harutyunyan et al. (2019), and their names.

    Windows lie between the first and last measurement *of that variable* in the stay, widened by 1e-6 at both ends, so
    each holds at least one measurement. The sd divides by the count; the skewness is m₃/m₂^{3/2}, and 0 when all values
    in the window are equal (as SciPy had it then; it is NaN today). A variable that was never measured is NaN
    throughout, its counts too. Columns are ordered as the benchmark's: by variable, then window, then statistic. They
    are kept in double precision, where the benchmark rounds to single.
    """
    names = tuple(
        f"{variable} · {window} · {name}" for variable in variables for window in WINDOWS for name in STATISTICS
    )
    _check(measurements, stays, len(variables))
    x = np.full((stays * len(variables), len(WINDOWS), len(STATISTICS)), np.nan)
    if len(measurements.time):
        series = measurements.stay * len(variables) + measurements.variable
        order = np.lexsort((measurements.time, series))
        series, time, value = series[order], measurements.time[order], measurements.value[order]
        starts = np.flatnonzero(np.diff(series, prepend=-1))
        counts = np.diff(starts, append=len(series))
        begin, end = time[starts], time[starts + counts - 1]
        for window, (anchor, share) in enumerate(WINDOWS.values()):
            length = (end - begin) * share
            lower, upper = (begin, begin + length) if anchor == "first" else (end - length, end)
            inside = np.repeat(lower - _TOLERANCE, counts) < time
            inside &= time < np.repeat(upper + _TOLERANCE, counts)
            x[series[starts], window] = _statistics(value[inside], np.add.reduceat(inside, starts, dtype=np.intp))
    return x.reshape(stays, -1), names


def _statistics(value: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The statistics of consecutive runs of values, of which there are so many each.

    Moments are of values shifted and scaled to [0, 1], then centred: neither a large offset nor a small scale costs
    digits, and a run of equal values has exactly no spread.
    """
    starts = np.cumsum(counts) - counts
    low, high = np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
    spread = high - low
    scale = np.where(spread > 0, spread, 1)
    scaled = (value - np.repeat(low, counts)) / np.repeat(scale, counts)
    mean = np.add.reduceat(scaled, starts) / counts
    centred = scaled - np.repeat(mean, counts)
    variance = np.add.reduceat(centred**2, starts) / counts
    third = np.add.reduceat(centred**3, starts) / counts
    skew = np.where(spread > 0, third / np.where(spread > 0, variance, 1) ** 1.5, 0)
    return np.stack([low, high, low + scale * mean, scale * np.sqrt(variance), skew, counts], axis=1)


def _check(measurements: Measurements, stays: int, variables: int) -> None:
    if len({len(entries) for entries in measurements}) > 1:
        raise InputError("Stay, variable, time and value of the measurements differ in length: give one entry of each.")
    for name, codes, size in (("stay", measurements.stay, stays), ("variable", measurements.variable, variables)):
        if not np.issubdtype(codes.dtype, np.integer) or not ((codes >= 0) & (codes < size)).all():
            raise InputError(f"The {name} of a measurement is not a whole number below {size}: number them from 0.")
    for name, numbers in (("time", measurements.time), ("value", measurements.value)):
        if not np.isfinite(numbers).all():
            raise InputError(f"The {name} of a measurement is not a finite number: leave out what was not measured.")
