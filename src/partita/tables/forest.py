"""Forest plots: what each site says alone, what all say, and what all say without it."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from partita.errors import SettingsError, unknown
from partita.inputs import check_kind, check_number, check_path
from partita.tables.fitted import Fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_forest", "literal", "saved"]

_SITE_HEIGHT = 0.44
_MOST_PANELS = 24
_Estimate = tuple[float, float]


def draw_forest(fit: Fitted, name: str, mass: float = 0.95) -> "Figure":
    """A panel for each coefficient that a name stands for; see `Fit.forest`."""
    check_number("mass of an interval", mass, lambda mass: 0 < mass < 1, "between 0 and 1")
    if len(fit.sites) < 2:
        raise SettingsError("The fit has one site, of which a forest tells nothing: name the column of sites.")
    from partita.tables.picture import Picture

    panels = _panels(fit, name)
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    height = _SITE_HEIGHT * (len(fit.sites) + 1) + 1.1
    figure = Picture(figsize=(6.6 * columns, height * lines + 0.5), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, panel, fit.by_site(panel), fit.likelihood.ratio, mass)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _panels(fit: Fitted, name: str) -> list[str]:
    """The coefficients that a name stands for: one, or those of all levels of a category or parts of a spline.

    Where every class of the response has its own, those of all classes.
    """
    check_kind("coefficient", name, str, "give its name", name="a text")
    starts = [label + name for label in ("", *fit.likelihood.classes(fit.response))]
    found = [each for each in fit.names if each in starts or each.startswith(tuple(f"{start}[" for start in starts))]
    if not found:
        raise unknown("coefficient or category", name, fit.names)
    if len(found) > _MOST_PANELS:
        raise SettingsError(f"{name!r} has {len(found)} levels, too many for one picture: name one, as {found[0]!r}.")
    return found


def saved(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """The figure, written to a file if there is a path; its ending says the format."""
    if path is not None:
        check_path(path)
        kinds = figure.canvas.get_supported_filetypes()
        kind = os.path.splitext(os.fspath(path))[1].removeprefix(".").lower()
        if kind not in kinds:
            raise SettingsError(f"{path} cannot hold a picture: let its name end in .png, .svg or .pdf.")
        figure.savefig(os.fspath(path), dpi=150, format=kind)
    return figure


def literal(text: str) -> str:
    """A text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")


def _panel(
    axes: "Axes", title: str, sites: Mapping[str, Mapping[str, _Estimate]], ratio: str | None, mass: float
) -> None:
    """Sites from the top, each with its own estimate above that of the others; all of them at the bottom."""
    reach = float(stats.norm.ppf((1 + mass) / 2))
    shown = np.exp if ratio else np.asarray
    overall = next(iter(sites.values()))["all"]
    low, high = (float(shown(overall[0] + side * reach * overall[1])) for side in (-1, 1))
    digits = min(6, max(0, 1 - int(np.floor(np.log10(max(high - low, 1e-12) / 5)))))
    axes.axvspan(low, high, color="0.88", zorder=0)
    axes.axvline(float(shown(0.0)), color="0.4", linewidth=0.8, linestyle=":", zorder=1)
    looks: Sequence[tuple[str, str, float, dict[str, Any]]] = (
        ("alone", "this site alone", -0.16, {"marker": "s", "color": "black", "markersize": 6}),
        (
            "without",
            "all without it",
            0.16,
            {"marker": "o", "color": "0.35", "markersize": 6, "markerfacecolor": "white", "linestyle": "--"},
        ),
        ("all", "all sites, with the band", 0.0, {"marker": "D", "color": "black", "markersize": 7}),
    )
    for key, what, aside, look in looks:
        label = what
        rows = (
            [(len(sites), overall)] if key == "all" else [(at, site.get(key)) for at, site in enumerate(sites.values())]
        )
        for at, estimate in rows:
            if estimate is None:
                said = f"{what}: improper, no estimate"
                axes.text(
                    0.5, at + aside, said, transform=axes.get_yaxis_transform(), ha="center", va="center", fontsize=8
                )
                continue
            ends = shown(estimate[0] + reach * estimate[1] * np.array([-1, 0, 1]))
            axes.plot(ends, [at + aside] * 3, markevery=[1], linewidth=1.3, label=label, zorder=3, **look)
            axes.text(
                1.02,
                at + aside,
                _numbers(ends, digits),
                transform=axes.get_yaxis_transform(),
                fontsize=8,
                va="center",
                color=look["color"],
            )
            label = "_"
    axes.set_yticks(range(len(sites) + 1), [*map(literal, sites), "all"])
    axes.set_ylim(len(sites) + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_title(literal(title), loc="left", fontsize=11, fontweight="bold")
    axes.set_title(f"{mass:.0%} interval", loc="right", fontsize=8)
    axes.set_xlabel(ratio or "coefficient")
    if ratio:
        _log_scale(axes)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _log_scale(axes: "Axes") -> None:
    """A logarithmic scale whose few ticks are written as plain numbers, however narrow it is."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    wide = high / low > 20
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1.0, 3.0) if high / low < 1e4 else (1.0,)) if wide else MaxNLocator(5)
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _numbers(ends: np.ndarray, digits: int) -> str:
    low, middle, high = (f"{end:.{digits}f}" if abs(end) < 1e5 else f"{end:.2g}" for end in ends)
    return f"{middle} ({low} to {high})"
