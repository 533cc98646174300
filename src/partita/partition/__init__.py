"""How data is divided among clients."""

from partita.partition.shard import Partition, Shard, partition
from partita.partition.split import beta_kappa, by_column, equal_random, k_means, label_shards, split

__all__ = [
    "Partition",
    "Shard",
    "beta_kappa",
    "by_column",
    "equal_random",
    "k_means",
    "label_shards",
    "partition",
    "split",
]
