"""Named methods: each a composition of a schedule, an aggregation, a context and a solver.

`fit` runs any of them by name.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partita.data.shard import Partition
from partita.errors import unknown
from partita.families import Family
from partita.hyper.learning import How
from partita.inputs import check_choice, check_kind, check_texts
from partita.methods.composed import Common, Optimiser, Start
from partita.methods.matching import (
    assumed_density_filtering,
    double_loop,
    expectation_propagation,
    power_ep,
    snep,
    stochastic_power_ep,
)
from partita.methods.partitioned import (
    asynchronous,
    bayesian_admm,
    bcm_same,
    bcm_split,
    sequential,
    stochastic_local,
    stochastic_synchronous,
    streaming_vb,
    synchronous,
    vcl,
)
from partita.methods.pooled import (
    biased_global_vi,
    global_vi,
    incremental_vi,
    stochastic_fixed_point,
    stochastic_global_vi,
)
from partita.models import Model
from partita.server.method import Method
from partita.server.run import Result, run

__all__ = [
    "NAMED",
    "Common",
    "Optimiser",
    "Start",
    "assumed_density_filtering",
    "asynchronous",
    "bayesian_admm",
    "bcm_same",
    "bcm_split",
    "biased_global_vi",
    "double_loop",
    "expectation_propagation",
    "fit",
    "global_vi",
    "incremental_vi",
    "named",
    "power_ep",
    "sequential",
    "settings_of",
    "snep",
    "stochastic_fixed_point",
    "stochastic_global_vi",
    "stochastic_local",
    "stochastic_power_ep",
    "stochastic_synchronous",
    "streaming_vb",
    "synchronous",
    "vcl",
]

NAMED: Mapping[str, Callable[..., Method]] = {
    method.__name__: method
    for method in (
        sequential,
        synchronous,
        asynchronous,
        stochastic_synchronous,
        stochastic_local,
        power_ep,
        expectation_propagation,
        assumed_density_filtering,
        double_loop,
        snep,
        stochastic_power_ep,
        global_vi,
        stochastic_global_vi,
        stochastic_fixed_point,
        biased_global_vi,
        incremental_vi,
        bcm_same,
        bcm_split,
        vcl,
        streaming_vb,
        bayesian_admm,
    )
}
"""Every method by its name: what `fit`, TOML files and command lines know."""


def settings_of(name: str) -> list[str]:
    """The settings that the method with this name has."""
    check_choice("method", name, NAMED)
    own = inspect.signature(NAMED[name]).parameters.values()
    return [*(each.name for each in own if each.kind is not each.VAR_KEYWORD), *Common.__annotations__]


def named(name: str, **settings: Any) -> Method:
    """The method with this name and these settings, such as `named("synchronous", damping=0.2)`."""
    known = settings_of(name)
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {name}", setting, known)
    return NAMED[name](**settings)


def fit(
    name: str,
    model: Model,
    prior: Family,
    partition: Partition,
    settings: Mapping[str, Any] | None = None,
    *,
    learn: Sequence[str] = (),
    how: How = "coordinate",
    **options: Any,
) -> Result:
    """Runs a method by its name on a partition; every method's history has the same columns.

    Args:
        name: one of `NAMED`.
        model: the likelihood.
        prior: the prior, which is also the family of q.
        partition: the clients' rows; `partition.pooled()` has them in one client, and `partition.only(name)` is one
            client without the others.
        settings: the method's settings.
        learn: hyperparameters to learn: leaves of the model, such as "noise", and the prior's "prior_scale",
            "prior_scales" or "layer_scales".
        how: the way of learning them; see `partita.hyper.learning`.
        options: as for `run`.

    Returns:
        The result of the run.

    """
    check_texts("hyperparameters to learn", learn)
    if settings is not None:
        check_kind("settings", settings, Mapping, "give them by name", name="a dict")
    learned = {"learn": learn, "how": how} if len(learn) else {}
    return run(named(name, **learned, **settings or {}), model, prior, partition, **options)
