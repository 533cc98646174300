"""How data is divided among clients."""

from partita.partition.shard import Partition, Shard, federate
from partita.partition.splits import beta_kappa, by_column, equal_random, k_means, label_shards, split

__all__ = [
    "Partition",
    "Shard",
    "beta_kappa",
    "by_column",
    "equal_random",
    "federate",
    "k_means",
    "label_shards",
    "split",
]
