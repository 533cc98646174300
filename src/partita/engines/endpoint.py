"""The client's side of the message protocol. It is stateless between messages."""

import logging
from collections.abc import Mapping
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from partita.data.shard import Shard
from partita.engines.base import ROLES, Task
from partita.engines.local import prepare_reply, reply, shard_ell, shard_estimate
from partita.errors import FederationError, InputError
from partita.expectations import Estimate
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.values import Hyper, begin, likelihood_hyper, model_given
from partita.io.digest import digest
from partita.io.wire import Message, flatten, unflatten
from partita.local.client import Info, Recipe, Reply
from partita.numerics.compiled import Compiled

__all__ = [
    "BINDING",
    "ELL",
    "ESTIMATE",
    "UNBOUND",
    "ClientEndpoint",
    "ell_message",
    "read_ell",
    "read_reply",
    "reply_message",
    "update_message",
]

_LOG = logging.getLogger("partita")
ELL = "ell"
"""The kind of a message about an expected log-likelihood for a search."""
ESTIMATE = "estimate"
"""The kind of one for a report, with its standard error."""
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

    def prepare(self) -> None:
        """Compiles what the answer to an update takes, before there is one; nothing is computed on the rows."""
        task = Task(
            id="",
            client=0,
            name=self.name,
            prior=self.prior,
            posterior=jax.tree.map(jnp.asarray, self.prior),
            factor=self._factor,
            version=0,
            seed=0,
            updates=0,
            sent=0.0,
            hyper=self._hyper,
        )
        prepare_reply(self.recipe, task, self.shard, 1.0)

    def _answer(self, message: Message, about: dict[str, Any]) -> Message:
        kind, header = message.header.get("kind"), message.header
        if kind == "refused":
            _LOG.warning("%s: an answer was refused: it %s", self.name, message.words("reason", ""))
            return Message({**about, "kind": "ack"}, {})
        if header.get(BINDING) != self.binding:
            _LOG.warning("%s %s", self.name, UNBOUND)
            return Message({**about, "kind": "unbound"}, {})
        if kind == "update":
            task = self._task(message)
            found = reply(self.recipe, task, self.shard, header["share"])
            return reply_message({**about, "version": task.version}, found)
        if kind not in (ELL, ESTIMATE):
            unknown_kind = f"Unknown message kind {kind!r}: install the server's version of partita."
            raise FederationError(unknown_kind, unknown_kind)
        q, hyper = _received("q", message, self.prior), _received("e", message, self._hyper)
        key = jax.random.wrap_key_data(jnp.asarray(header["key"], jnp.uint32))
        model = model_given(self.recipe.model, hyper)
        if kind == ESTIMATE:
            ell = shard_estimate(model, q, self.name, self.shard, key)
        else:
            ell = Estimate.computed(np.asarray(shard_ell(model, q, self.shard, key)))
        totals, variance = [float(total) for total in ell.totals], float(ell.variance)
        return Message({**about, "kind": kind, "ell": totals, "variance": variance}, {})

    def tightness(self, message: Message, answer: Message) -> tuple[float, float]:
        """How many times as precise as the prior the posterior of a message is, and its own factor with the prior.

        That is in the direction in which it is most, and after the answer; 0 where it is not known, or there are no
        directions in the family.
        """
        q, one = _received(ROLES["posterior"].arrays, message, self.prior), self.prior.one()
        own = one
        if answer.header.get("kind") == "update":
            delta = unflatten(answer.arrays, self._factor, "The answer")
            own = (_received(ROLES["factor"].arrays, message, self._factor) * delta).natural
        try:
            largest, mine = _largest_ratios(self.prior, q, own)
        except InputError:
            return 0.0, 0.0
        return float(largest), 0.0 if own is one else float(mine)

    def _task(self, message: Message) -> Task:
        """The inverse of `update_message`, as far as an answer depends on it."""
        like = {"posterior": self.prior, "factor": self._factor, "hyper": self._hyper}
        scalars = {name: message.header[role.header] for name, role in ROLES.items() if role.header}
        trees = {name: _received(role.arrays, message, like[name]) for name, role in ROLES.items() if role.arrays}
        return Task(name=self.name, prior=self.prior, updates=0, sent=0.0, **scalars, **trees)


@Compiled
def _largest_ratios(prior: Family, q: Family, own: Family) -> tuple[Float[Array, ""], Float[Array, ""]]:
    return q.precision_range(prior)[1], (prior * own).precision_range(prior)[1]


def _received(prefix: str, message: Message, like: Any) -> Any:
    """A part of the server's message; what is wrong with it may be said to the server, which wrote it."""
    try:
        return unflatten(_under(prefix, message), like, "The message")
    except InputError as error:
        raise FederationError(str(error), str(error)) from None


def update_message(task: Task, share: float) -> Message:
    """Encodes a task as a message."""
    message = Message({"kind": "update", "share": share}, {})
    for name, role in ROLES.items():
        if role.header:
            message.header[role.header] = getattr(task, name)
        if role.arrays:
            message.arrays.update(_named(role.arrays, getattr(task, name)))
    return message


def reply_message(about: Mapping[str, Any], reply: Reply) -> Message:
    """Encodes a reply as a message."""
    header = {**about, "kind": "update", "info": reply.info.written()}
    return Message(header, flatten(reply.delta) | _named("e", reply.gradient))


def read_reply(message: Message, like: Factor, hyper: Hyper) -> Reply:
    """An answer, symmetrised; what holds other shapes or kinds than a factor and a gradient in ε is refused."""
    delta = unflatten(message.arrays, like, "The answer")
    delta = Factor(delta.natural.symmetrised(), delta.log_scale)
    gradient = unflatten(_under("e", message), likelihood_hyper(hyper), "The answer")
    if len(message.arrays) != len(jax.tree.leaves((delta, gradient))):
        raise FederationError("The answer has more arrays than the change of a factor.")
    finite = all(np.isfinite(array).all() for array in message.arrays.values())
    return Reply(delta, Info.read(message.header.get("info"), finite), gradient)


def read_ell(message: Message) -> Estimate:
    """Decodes an expected log-likelihood; unknown if it is invalid."""
    totals, variance = message.header.get("ell"), message.header.get("variance")
    if not (isinstance(totals, list) and totals and _is_number(variance) and variance >= 0):
        return Estimate.unknown()
    return Estimate(np.array(totals), variance) if all(map(_is_number, totals)) else Estimate.unknown()


def ell_message(kind: str, task: str, q: Family, key: Key[Array, ""], hyper: Hyper) -> Message:
    """A message that asks for a client's expected log-likelihood: `ELL`, or `ESTIMATE` with its standard error."""
    header = {"kind": kind, "task": task, "key": np.asarray(jax.random.key_data(key)).tolist()}
    return Message(header, _named("q", q) | _named("e", hyper))


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) is float and bool(np.isfinite(value))


def _named(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    return {f"{prefix}{name}": array for name, array in flatten(tree).items()}


def _under(prefix: str, message: Message) -> dict[str, Any]:
    return {name[1:]: array for name, array in message.arrays.items() if name.startswith(prefix)}
