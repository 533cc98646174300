"""The demo's figure: how fast each schedule approaches global VI."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from partita.results.history import History

__all__ = ["STYLES", "draw"]

STYLES = (("#1b6ca8", "-", "o"), ("#c8553d", "--", "s"), ("#3f7d20", "-.", "^"))
"""Colour, line and marker of each schedule, distinguishable without colour."""


def draw(path: Path, histories: Mapping[str, History], pooled: Mapping[str, Any], alone: Mapping[str, Any]) -> None:
    """Plots test NLL and the free-energy gap to global VI against communications."""
    figure = Figure(figsize=(10, 4.2))
    left, right = figure.subplots(1, 2)
    # an automatic layout draws everything twice more
    figure.subplots_adjust(left=0.07, right=0.985, bottom=0.13, top=0.9, wspace=0.18)
    lowest = pooled["nll"]
    for (name, history), (colour, line, marker) in zip(histories.items(), STYLES, strict=True):
        known = ~np.isnan(np.array(history["free_energy"], float))
        x = history["communications"][known]
        look = {"color": colour, "linestyle": line, "marker": marker, "markersize": 4, "markevery": 0.1, "label": name}
        left.plot(x, history["nll"][known], **look)
        right.plot(x, np.maximum(pooled["free_energy"] - history["free_energy"][known], 1e-3), **look)
    left.axhline(lowest, color="black", linewidth=1, label="global VI")
    left.axhline(alone["nll"], color="grey", linestyle=":", label="best client alone")
    left.set(ylabel="test negative log-likelihood, nats per row", ylim=(lowest - 0.005, max(0.45, alone["nll"] + 0.02)))
    right.set(ylabel="free energy below global VI, nats", yscale="log")
    for axes in (left, right):
        axes.set(xlabel="communications (client round trips)", xscale="log")
        axes.grid(alpha=0.25)
    handles, labels = left.get_legend_handles_labels()
    right.legend(handles, labels, loc="lower left")
    figure.suptitle("Bayesian logistic regression on Adult, ten clients that keep their rows")
    figure.savefig(path, dpi=150)
