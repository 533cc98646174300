"""The paper's experiments, and ours: configuration as data, resumable runs, tidy results, figures and a report."""

from partita_experiments.config import NAMES, Experiment, load

__all__ = ["NAMES", "Experiment", "load"]
