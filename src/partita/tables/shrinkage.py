"""Shrinkage plots: effects of groups from their own rows alone, partially pooled, and pooled."""

from typing import TYPE_CHECKING

from partita.tables.fitted import Fitted
from partita.tables.forest import literal
from partita.tables.group_effects import effects_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_shrinkage"]

_HEIGHT = 0.22
_MOST_NAMED = 60
"""Beyond so many groups their names are left out."""


def draw_shrinkage(fit: Fitted, draws: int) -> "Figure":
    """A panel for each effect, with groups in the order of their estimates; see `Fit.shrinkage`."""
    from partita.tables.picture import Picture

    told = effects_of(fit, draws)
    names = list(dict.fromkeys((each.by, each.effect) for each in told))
    most = max(sum((each.by, each.effect) == name for each in told) for name in names)
    figure = Picture(figsize=(5.5 * len(names), min(_HEIGHT * most, 30) + 1.4), layout="constrained")
    grid = figure.subplots(1, len(names), squeeze=False)
    for axes, (by, effect) in zip(grid.flat, names, strict=True):
        mine = sorted((each for each in told if (each.by, each.effect) == (by, effect)), key=lambda each: each.mean)
        count = len(mine)
        at = range(count)
        axes.axvline(0.0, color="0.4", linewidth=0.8, linestyle=":", label="pooled")
        for each, place in zip(mine, at, strict=True):
            axes.plot([each.alone, each.mean], [place, place], color="0.8", linewidth=0.8, zorder=0)
        own, sds = [each.mean for each in mine], [1.96 * each.sd for each in mine]
        axes.plot([each.alone for each in mine], at, "s", color="0.6", markersize=3, label="this group alone")
        axes.errorbar(own, at, xerr=sds, fmt="o", color="black", markersize=3, linewidth=0.8, label="partially pooled")
        named = [literal(each.group) if count <= _MOST_NAMED else "" for each in mine]
        axes.set_yticks(list(at) if count <= _MOST_NAMED else [], named if count <= _MOST_NAMED else [])
        axes.set_xlabel(f"effect: {literal(effect)} by {literal(by)}")
        middle = max(abs(each.mean) + 1.96 * each.sd for each in mine)
        axes.set_xlim(-1.3 * middle, 1.3 * middle)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
