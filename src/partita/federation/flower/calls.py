"""The calls that clients make of a server, as an ASGI application; every other path does not exist.

Before a body is read its caller is known by its key, its signature and time are good, and its length is at most that of
an honest call. What a call holds is read as one of Flower's own messages.
"""

import asyncio
import contextlib
import email.utils
import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from partita.errors import MissingExtraError
from partita.federation.flower import messages
from partita.federation.flower.objects import MARGIN, envelope
from partita.federation.flower.office import Office, TakenError
from partita.federation.flower.signature import Keyring, UnknownCallerError

__all__ = ["PREFIX", "PROTOBUF", "REFUSED", "SESSION_HEADER", "WAIT_HEADER", "fleet"]

try:
    from flwr.supercore.error import ApiErrorCode
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

PREFIX = "/v1/fleet/"
PROTOBUF = "application/protobuf"
SESSION_HEADER = "partita-session"
"""A header of partita's own client: which process calls."""
WAIT_HEADER = "partita-wait"
"""Another: how many seconds its pull may wait for a message."""
REFUSED = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
"""Flower's code for a client whose place is taken."""
_AT_ONCE = 6
"""Calls of one key at once."""
_SMALL = 2**13
"""The longest body of a call without an object: a message's envelope and the tree of its three objects."""
_LONGEST_WAIT = 20.0
_SECONDS, _SPEED = 10.0, 2**16
"""A body arrives within so many seconds, and one more for so many bytes."""

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Refusal(Exception):
    """A call that is not answered, with the HTTP status that says why."""

    def __init__(self, status: int, detail: str, code: int = 0) -> None:
        super().__init__(detail)
        self.status, self.body = status, {"detail": detail} | ({"code": code} if code else {})


class _Call:
    """A call that has come: whose it is, and how its body is read."""

    def __init__(self, name: str, headers: dict[str, str], receive: _Receive) -> None:
        self.name, self.receive = name, receive
        self.session = headers.get(SESSION_HEADER, "")[:64]
        self.wait = headers.get(WAIT_HEADER, "0")

    async def body(self, length: int) -> bytes:
        """What it holds, of a length that was said before."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(_SECONDS + length / _SPEED):
                while True:
                    event = await self.receive()
                    if event["type"] != "http.request":
                        raise _Refusal(400, "The call has ended early.")
                    parts.append(event.get("body", b""))
                    size += len(parts[-1])
                    if size > length:
                        raise _Refusal(413, "The call is longer than it says.")
                    if not event.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise _Refusal(408, "The call took too long.") from None


def fleet(
    office: Office, keys: Keyring, now: Callable[[], float]
) -> Callable[[_Scope, _Receive, _Send], Awaitable[None]]:
    """The application; `now` is the time of day that its answers state, by which callers' clocks are judged."""
    at_once: Counter[str] = Counter()
    reading: Counter[str] = Counter()

    async def answered(scope: _Scope, receive: _Receive) -> bytes:
        path, method = scope["path"], scope["method"]
        if path == "/health" and method == "GET":
            return b""
        kind = _CALLS.get(path.removeprefix(PREFIX)) if path.startswith(PREFIX) and method == "POST" else None
        if kind is None:
            raise _Refusal(404, "There is no such call.")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            name, key = keys.caller(headers)
        except UnknownCallerError as error:
            raise _Refusal(401, str(error)) from None
        office.knows(name, key)
        request, handler, of_object = kind
        length = headers.get("content-length", "")
        if not length.isdigit() or len(length) > 12:
            raise _Refusal(411, "The call does not say its length.")
        most = office.room(name) - reading[name] if of_object else _SMALL
        if int(length) > most + (MARGIN if of_object else 0):
            raise _Refusal(413, "The call is longer than an honest one.")
        if at_once[name] >= _AT_ONCE:
            raise _Refusal(429, "There are too many calls at once.")
        call = _Call(name, headers, receive)
        at_once[name] += 1
        reading[name] += int(length) if of_object else 0
        try:
            message = request()
            try:
                message.ParseFromString(await call.body(int(length)))
            except Exception as error:
                raise error if isinstance(error, _Refusal) else _Refusal(400, "The call cannot be read.") from None
            return bytes((await handler(office, keys, call, message)).SerializeToString())
        finally:
            at_once[name] -= 1
            reading[name] -= int(length) if of_object else 0

    async def application(scope: _Scope, receive: _Receive, send: _Send) -> None:
        date = email.utils.formatdate(now(), usegmt=True).encode()
        headers = [(b"date", date), (b"content-type", PROTOBUF.encode())]
        try:
            status, body = 200, await answered(scope, receive)
        except _Refusal as refusal:
            status, body = refusal.status, json.dumps(refusal.body).encode()
            headers = [(b"date", date), (b"content-type", b"application/json"), (b"connection", b"close")]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


def _own(office: Office, call: _Call, number: int) -> None:
    """Refuses a call that names another node than its key's, or that comes from a second process of a client."""
    if number != office.number(call.name):
        raise _Refusal(401, "its node is not its key's")
    try:
        office.hear(call.name, call.session)
    except TakenError:
        raise _taken() from None


def _taken() -> _Refusal:
    return _Refusal(412, "another process with its key is at work", REFUSED)


async def _activate(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    if request.public_key != keys.keys.get(call.name):
        raise _Refusal(401, "its key is not the one that has signed")
    try:
        office.enter(call.name, call.session)
    except TakenError:
        raise _taken() from None
    return messages.ActivateNodeResponse(node_id=office.number(call.name))


async def _deactivate(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    if request.node_id != office.number(call.name):
        raise _Refusal(401, "its node is not its key's")
    office.leave(call.name, call.session)
    return messages.DeactivateNodeResponse()


async def _heartbeat(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    _own(office, call, request.node.node_id)
    return messages.SendNodeHeartbeatResponse(success=True)


async def _pull(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    """Hands over the next message; waits for one where the caller has said that it may."""
    _own(office, call, request.node.node_id)
    seconds = min(float(call.wait), _LONGEST_WAIT) if call.wait.isdigit() else 0.0
    loop, come = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(come.set)

    office.wait(call.name, told)
    given = office.next(call.name)
    if given is None and seconds > 0:
        waiting = [asyncio.ensure_future(come.wait()), asyncio.ensure_future(call.receive())]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiting[1].done():
                office.lose(call.name, call.session)
                return messages.PullMessagesResponse()
        finally:
            for one in waiting:
                one.cancel()
        _own(office, call, request.node.node_id)
        given = office.next(call.name)
    if given is None:
        return messages.PullMessagesResponse()
    found = envelope(given.about, given.identity)
    return messages.PullMessagesResponse(messages_list=[found], message_object_trees=[given.tree])


async def _pull_object(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    _own(office, call, request.node.node_id)
    content = office.content(call.name, request.object_id)
    found = content is not None
    return messages.PullObjectResponse(object_found=found, object_available=found, object_content=content or b"")


async def _confirm(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    _own(office, call, request.node.node_id)
    return messages.ConfirmMessageReceivedResponse()


async def _push(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    """Takes an answer's envelope: whose it is follows from the key, and it answers a message of that client."""
    _own(office, call, request.node.node_id)
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise _Refusal(400, "The call holds more or less than one message.")
    about = request.messages_list[0].metadata
    if about.src_node_id != office.number(call.name):
        raise _Refusal(403, "The message is of another sender than its key's.")
    try:
        missing = office.announce(call.name, about.reply_to_message_id, request.message_object_trees[0])
    except ValueError as error:
        raise _Refusal(400, str(error)) from None
    return messages.PushMessagesResponse(
        results={about.message_id[:64]: 0}, objects_to_push=missing, session_id=call.session
    )


async def _push_object(office: Office, keys: Keyring, call: _Call, request: Any) -> Any:
    _own(office, call, request.node.node_id)
    try:
        stored = await asyncio.to_thread(office.take, call.name, request.object_id, request.object_content)
    except ValueError as error:
        raise _Refusal(400, str(error)) from None
    return messages.PushObjectResponse(stored=stored)


_CALLS: dict[str, tuple[Any, Callable[..., Awaitable[Any]], bool]] = {
    "activate-node": (messages.ActivateNodeRequest, _activate, False),
    "deactivate-node": (messages.DeactivateNodeRequest, _deactivate, False),
    "send-node-heartbeat": (messages.SendNodeHeartbeatRequest, _heartbeat, False),
    "pull-messages": (messages.PullMessagesRequest, _pull, False),
    "pull-object": (messages.PullObjectRequest, _pull_object, False),
    "push-messages": (messages.PushMessagesRequest, _push, False),
    "push-object": (messages.PushObjectRequest, _push_object, True),
    "confirm-message-received": (messages.ConfirmMessageReceivedRequest, _confirm, False),
}
"""Each call's request, what answers it, and whether it holds an object."""
