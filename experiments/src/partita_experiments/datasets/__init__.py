"""Data sets of the experiments beside those of the library, from the user or downloaded; diabetes is scikit-learn's."""

from partita_experiments.datasets.diabetes import diabetes
from partita_experiments.datasets.epilepsy import epilepsy
from partita_experiments.datasets.heart import heart_frames
from partita_experiments.datasets.mimic import mimic_frames
from partita_experiments.datasets.mnist import mnist
from partita_experiments.datasets.physionet import physionet_frames
from partita_experiments.datasets.uci import bank, bank_frames, credit, credit_frames, frames

__all__ = [
    "bank",
    "bank_frames",
    "credit",
    "credit_frames",
    "diabetes",
    "epilepsy",
    "frames",
    "heart_frames",
    "mimic_frames",
    "mnist",
    "physionet_frames",
]
