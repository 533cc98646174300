"""The client's side of the message protocol. It is stateless between messages."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.data.shard import Shard
from partita.engines.base import Task
from partita.engines.local import client_key, shard_ell
from partita.errors import FederationError, InputError
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.values import Hyper, begin, likelihood_hyper, model_given
from partita.io.digest import digest
from partita.io.wire import Message, flatten, unflatten
from partita.local.client import Info, Recipe, Reply, client_update
from partita.local.solvers import Outcome

_LOG = logging.getLogger("partita")
_NUMBERS: Mapping[str, Callable[[Any], bool]] = {
    "ell": lambda value: type(value) is float,
    "free_energy": lambda value: type(value) is float,
    "residual": lambda value: type(value) is float and not np.isnan(value),
    "steps": lambda value: type(value) is int and 0 <= value < 2**31,
    "skipped": lambda value: type(value) is int and 0 <= value < 2**31,
    "outcome": lambda value: type(value) is int and value in set(Outcome),
    "finite": lambda value: type(value) is bool,
}
"""A validity check for each scalar of an answer."""
BINDING = "binding"
"""The header key for the digest of method, model and prior."""
UNBOUND = "has another method, model, prior or precision than the server: use the same on both."


class ClientEndpoint:
    """Answers tasks with `client_update` on its rows. An answer has the size of the posterior, not of the data."""

    def __init__(self, name: str, recipe: Recipe, prior: Family, shard: Shard) -> None:
        self.name, self.recipe, self.prior, self.shard = name, recipe, prior, shard
        self._factor = Factor.one(prior)
        self._hyper = begin(recipe.model, prior, recipe.learned)
        self.binding = digest(recipe, prior)

    def handle(self, message: Message) -> Message:
        """The answer to a message, or an error message that contains no data."""
        about = {"name": self.name, "task": str(message.header.get("task", ""))}
        try:
            return self._answer(message, about)
        except Exception as error:
            _LOG.warning("%s: %s: %s", self.name, type(error).__name__, error)
            public = error.public if isinstance(error, InputError) else None
            reason = public or f"failed with {type(error).__name__}; its own log says more"
            return Message({**about, "kind": "error", "reason": reason}, {})

    def _answer(self, message: Message, about: dict[str, Any]) -> Message:
        kind, header = message.header.get("kind"), message.header
        if kind == "refused":
            _LOG.warning("%s: an answer was refused: it %s", self.name, header.get("reason"))
            return Message({**about, "kind": "ack"}, {})
        if header.get(BINDING) != self.binding:
            _LOG.warning("%s %s", self.name, UNBOUND)
            return Message({**about, "kind": "unbound"}, {})
        q = _received("q", message, self.prior)
        hyper = _received("e", message, self._hyper)
        if kind == "ell":
            key = jax.random.wrap_key_data(jnp.asarray(header["key"], jnp.uint32))
            ell = shard_ell(model_given(self.recipe.model, hyper), q, self.shard, key)
            return Message({**about, "kind": "ell", "ell": float(ell)}, {})
        if kind != "update":
            unknown_kind = f"Unknown message kind {kind!r}: install the server's version of partita."
            raise FederationError(unknown_kind, unknown_kind)
        factor = _received("t", message, self._factor)
        key = client_key(header["seed"], header["client"], header["version"])
        reply = client_update(self.recipe, self.prior, q, factor, self.shard, header["share"], key, hyper)
        return reply_message({**about, "version": header["version"]}, reply)


def _received(prefix: str, message: Message, like: Any) -> Any:
    """A part of the server's message; what is wrong with it may be said to the server, which wrote it."""
    try:
        return unflatten(_under(prefix, message), like, "The message")
    except InputError as error:
        raise FederationError(str(error), str(error)) from None


def update_message(task: Task, share: float) -> Message:
    """Encodes a task as a message."""
    header = {
        "kind": "update",
        "task": task.id,
        "client": task.client,
        "version": task.version,
        "seed": task.seed,
        "share": share,
    }
    return Message(header, _named("q", task.posterior) | _named("t", task.factor) | _named("e", task.hyper))


def reply_message(about: Mapping[str, Any], reply: Reply) -> Message:
    """Encodes a reply as a message."""
    info = {name: value.item() for name, value in vars(jax.device_get(reply.info)).items()}
    return Message({**about, "kind": "update", "info": info}, flatten(reply.delta) | _named("e", reply.gradient))


def read_reply(message: Message, like: Factor, hyper: Hyper) -> Reply:
    """An answer, symmetrised; what holds other shapes or kinds than a factor and a gradient in ε is refused."""
    delta = unflatten(message.arrays, like, "The answer")
    delta = Factor(delta.natural.symmetrised(), delta.log_scale)
    gradient = unflatten(_under("e", message), likelihood_hyper(hyper), "The answer")
    info = message.header.get("info")
    if not isinstance(info, dict) or set(info) != set(_NUMBERS):
        raise FederationError("The answer lacks some of the required scalars.")
    if len(message.arrays) != len(jax.tree.leaves((delta, gradient))):
        raise FederationError("The answer has more arrays than the change of a factor.")
    for name, value in info.items():
        if not _NUMBERS[name](value):
            raise FederationError(f"The answer's {name} is invalid.")
    finite = info["finite"] and all(np.isfinite(array).all() for array in message.arrays.values())
    return Reply(delta, Info(**{**info, "finite": finite}), gradient)


def read_ell(message: Message) -> float:
    """Decodes an expected log-likelihood; NaN if it is invalid."""
    ell = message.header.get("ell")
    return ell if type(ell) is float and np.isfinite(ell) else float("nan")


def ell_message(task: str, q: Family, key: jax.Array, hyper: Hyper) -> Message:
    """A message that asks for a client's expected log-likelihood."""
    header = {"kind": "ell", "task": task, "key": np.asarray(jax.random.key_data(key)).tolist()}
    return Message(header, _named("q", q) | _named("e", hyper))


def _named(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    return {f"{prefix}{name}": array for name, array in flatten(tree).items()}


def _under(prefix: str, message: Message) -> dict[str, Any]:
    return {name[1:]: array for name, array in message.arrays.items() if name.startswith(prefix)}
