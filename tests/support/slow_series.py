"""A slow reference implementation of the time-series features."""

import numpy as np
import scipy.stats


def slow(measurements, stays, variables):
    """The benchmark's definition, one series, window and statistic at a time."""
    rows = []
    for stay in range(stays):
        row = []
        for variable in range(variables):
            here = [(t, v) for s, k, t, v in zip(*measurements, strict=True) if (s, k) == (stay, variable)]
            here.sort(key=lambda pair: pair[0])
            for first, percent in [(True, 100), *((f, p) for f in (True, False) for p in (10, 25, 50))]:
                if not here:
                    row += [np.nan] * 6
                    continue
                begin, end = here[0][0], here[-1][0]
                length = (end - begin) * percent / 100
                lower, upper = (begin, begin + length) if first else (end - length, end)
                values = np.array([v for t, v in here if lower - 1e-6 < t < upper + 1e-6])
                skew = 0.0 if np.ptp(values) == 0 else scipy.stats.skew(values)
                row += [values.min(), values.max(), values.mean(), values.std(), skew, len(values)]
        rows.append(row)
    return np.array(rows)
