"""The picture of a check."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from partita.tables.checked import Group, SiteCheck
from partita.tables.forest import literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_check"]


def draw_check(sites: Mapping[str, SiteCheck]) -> "Figure":
    """A panel a site: observed shares against expected ones, or ranks in predictive distributions."""
    from partita.tables.picture import Picture

    columns = min(3, len(sites))
    lines = -(-len(sites) // columns)
    figure = Picture(figsize=(3.4 * columns + 0.4, 3.2 * lines + 0.3), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(sites) :]:
        axes.set_axis_off()
    for axes, (name, site) in zip(grid.flat, sites.items(), strict=False):
        axes.set_title(f"{literal(name)} ({site.rows} rows)", loc="left", fontsize=10)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if site.calibration:
            _calibration(axes, site.calibration)
        elif site.ranks:
            _ranks(axes, site)
        else:
            axes.text(0.5, 0.5, "too few rows to report", transform=axes.transAxes, ha="center")
    return figure


def _calibration(axes: "Axes", groups: tuple[Group, ...]) -> None:
    """Each group's share with the 95% range that the expected share allows; none where it is not reported."""
    reported = [(group.rows, group.expected, group.observed) for group in groups if group.observed is not None]
    axes.plot([0, 1], [0, 1], color="0.5", linewidth=0.8)
    if reported:
        rows, expected, observed = (np.array(part, dtype=float) for part in zip(*reported, strict=True))
        reach = 1.96 * np.sqrt(expected * (1 - expected) / rows)
        axes.vlines(expected, expected - reach, expected + reach, color="0.75", linewidth=5)
        axes.plot(expected, observed, "o", color="black", markersize=5)
        low, high = min((expected - reach).min(), observed.min()), max((expected + reach).max(), observed.max())
        room = 0.05 * max(high - low, 0.2)
        axes.set(xlim=(max(0, low - room), min(1, high + room)), ylim=(max(0, low - room), min(1, high + room)))
    if len(reported) < len(groups):
        said = f"{len(groups) - len(reported)} of {len(groups)} groups not reported"
        axes.text(0.98, 0.03, said, transform=axes.transAxes, ha="right", fontsize=8)
    axes.set(xlabel="expected share", ylabel="observed share")


def _ranks(axes: "Axes", site: SiteCheck) -> None:
    """Rows in each tenth of their predictive distribution, and the 95% range of even counts."""
    share = 1 / len(site.ranks)
    middle = (np.arange(len(site.ranks)) + 0.5) * share
    reach = 1.96 * np.sqrt(site.rows * share * (1 - share))
    even = site.rows * share
    axes.axhspan(max(0.0, even - reach), even + reach, color="0.88", zorder=0)
    axes.axhline(even, color="0.5", linewidth=0.8, zorder=1)
    axes.bar(
        middle, [count or 0 for count in site.ranks], width=0.85 * share, facecolor="0.45", edgecolor="black", zorder=2
    )
    for place, count in zip(middle, site.ranks, strict=True):
        if count is None:
            axes.text(place, 0.02 * even, "<5", ha="center", va="bottom", fontsize=8)
    axes.set(xlabel="place in the predictive distribution", ylabel="rows", xlim=(0, 1))
