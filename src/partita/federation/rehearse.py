"""Simulates a federation in one process from the clients' files, as a reference for the real run."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from partita.data import Partition, federate
from partita.families import Family
from partita.federation.beginning import agreed, beginning
from partita.federation.config import Federation
from partita.federation.scheme import Scheme
from partita.models import Model
from partita.models.prior import OutsidePrior, base_of
from partita.results.posterior_file import load_posterior
from partita.server.bound import partition_free_energy
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.run import Result, run

__all__ = ["Rehearsal"]


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """A federation's model, prior and all clients' rows."""

    federation: Federation
    scheme: Scheme
    model: Model
    prior: Family | OutsidePrior
    partition: Partition

    @classmethod
    def read(cls, federation: Federation, files: Mapping[str, Path]) -> "Rehearsal":
        """The simulation of a federation with these client files."""
        begun = beginning(federation)
        clients = [begun.read(files[name], name) for name in federation.clients]
        scheme = agreed(begun, clients, federation.disclosure)
        tables, weights = [scheme.table(own) for own in clients], [scheme.weights(own) for own in clients]
        parts = federate(tables, weights=weights, names=federation.clients)
        return cls(federation, scheme, scheme.model(), scheme.prior(), parts)

    def run(self) -> Result:
        """Runs it in this process with the same settings, seed and admission bounds."""
        return run(
            self.scheme.method(),
            self.model,
            self.prior,
            self.partition,
            rules=Rules(admission=self.federation.built_admission()),
            rounds=self.federation.run.rounds,
            tolerance=self.federation.run.tolerance,
            seed=self.federation.seed,
            monitor=Monitor(every=0),
        )

    def free_energy(self, q: Family) -> float:
        """F(q) on all clients' rows."""
        return partition_free_energy(self.model, self.partition, self.prior.returned, q, self.federation.seed)

    def posterior(self, folder: Path) -> Family:
        """The posterior of the real run, from its folder."""
        return load_posterior(folder / "posterior.npz", base_of(self.prior).returned)[0]
