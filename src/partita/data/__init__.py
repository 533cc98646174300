"""Rows: tables, how they are divided among clients, and raw columns with the encoding on which clients agree."""

from partita.data.disclosure import Limits
from partita.data.frame import Frame, Frames
from partita.data.partitioners import beta_kappa, by_column, equal_random, k_means, label_shards, split
from partita.data.shard import Partition, Shard, federate
from partita.data.table import GroupedTable, Table, with_intercept

__all__ = [
    "Frame",
    "Frames",
    "GroupedTable",
    "Limits",
    "Partition",
    "Shard",
    "Table",
    "beta_kappa",
    "by_column",
    "equal_random",
    "federate",
    "k_means",
    "label_shards",
    "split",
    "with_intercept",
]
