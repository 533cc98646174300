"""What a run is given by its user: what is of the wrong kind is refused before anything else looks at it."""

import inspect
from typing import Any

from partita.data.shard import Partition
from partita.engines import Engine
from partita.errors import DataError
from partita.families import Family
from partita.inputs import check_kind, check_number, check_seed, check_tolerance
from partita.models import Model
from partita.models.prior import OutsidePrior
from partita.server.method import Method
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.state import State
from partita.server.store import Requests, Store

__all__ = ["check_arguments", "check_companions"]


def check_arguments(
    method: Any, model: Any, prior: Any, partition: Any, seed: Any, rounds: Any, communications: Any, tolerance: Any
) -> None:
    """Raises an `InputError` unless each argument is what it is called; a partition and budgets may be None."""
    how = (
        f"pass partita.methods.named({method!r:.60})" if isinstance(method, str) else "call it, or use partita.methods"
    )
    check_kind("method", method, Method, how)
    check_kind("model", model, Model, f"pass {model.__name__}()" if inspect.isclass(model) else "use partita.models")
    prior_of = "give one, such as partita.FullGaussian.standard_normal(columns)"
    check_kind("prior", prior, Family | OutsidePrior, prior_of, name="a member of a family")
    if partition is not None:
        rows = "make a Partition with partita.federate([…]) or partita.split(…)"
        check_kind("partition", partition, Partition, rows, DataError)
    check_seed(seed)
    for what, value in {"number of rounds": rounds, "number of communications": communications}.items():
        if value is not None:
            check_number(what, value)
    check_tolerance(tolerance)


def check_companions(state: Any, engine: Any, rules: Any, store: Any, requests: Any, monitor: Any) -> None:
    """Raises a `SettingsError` unless what goes along with a run is what it is called; any may be None."""
    kinds = {
        "state": (state, State, "give another run's result.state"),
        "engine": (engine, Engine, "give such as partita.LocalEngine(partition)"),
        "rules": (rules, Rules, "give partita.Rules(…)"),
        "store": (store, Store, 'give such as partita.Checkpoint("run.npz")'),
        "requests": (requests, Requests, "give such as partita.Ledger(path)"),
        "monitor": (monitor, Monitor, "give partita.Monitor(…)"),
    }
    for what, (value, kind, how) in kinds.items():
        if value is not None:
            check_kind(what, value, kind, how)
