"""A client's link to a server that offers Flower's fleet calls: it dials out, and listens on nothing."""

import contextlib
import email.utils
import secrets
import ssl
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

from partita.engines.remote import LARGEST
from partita.errors import FederationError, InputError, MissingExtraError
from partita.federation.flower import messages
from partita.federation.flower.calls import PREFIX, PROTOBUF, REFUSED, SESSION_HEADER, WAIT_HEADER
from partita.federation.flower.objects import chain, envelope, unwrapped, wrapped
from partita.federation.flower.signature import CLOCK, private_key, public_bytes, signed
from partita.federation.link import Letter, Link, UnreachableError
from partita.io.wire import HEADER, Message, sanitise

__all__ = ["FleetLink"]

try:
    import httpx
    from flwr.app.metadata import Metadata
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

_Answer = TypeVar("_Answer")
_CONNECT, _ANSWER = 10.0, 60.0
"""Seconds for a connection to be made, and between two pieces of an answer."""
_WAIT = 10
"""Seconds that the server may keep a pull until there is a message."""
_PAUSE = 0.5
"""Seconds between two pulls of a server that answers them at once, as Flower's own does."""
_ARRIVING = 0.1
"""Seconds between two tries to fetch an object that is still on its way to the server."""
_BEAT, _PROMISED = 5.0, 30
"""Seconds between two heartbeats, and those that are promised to the server: Flower's least is 10."""
_OUT_OF_TIME = (9, 10)
"""OpenSSL's codes for certificates that are not good yet, or not any more."""
_SKEW, _OBVIOUS = 4.0, 60.0
"""Seconds by which two clocks may differ without a word, as Flower's server takes a call from 5 seconds in the future;
and those beyond which a refusal is for the clocks, whatever it says."""


class FleetLink(Link):
    """Calls a server over TLS, with a client's key; through a proxy where the environment or the caller names one.

    The server's certificate is checked against the federation's own authority, and against another one where the site
    inspects what passes its proxy.
    """

    def __init__(
        self, address: str, authority: Path, key: Path, proxy: str | None = None, further: Path | None = None
    ) -> None:
        self.address, self._key = address, private_key(key)
        trust = _trust(authority, further)
        through = None if proxy is None else _proxy(proxy, further)
        self._http = httpx.Client(
            base_url=f"https://{address}{PREFIX}",
            verify=trust,
            proxy=through,
            timeout=httpx.Timeout(_ANSWER, connect=_CONNECT),
            limits=httpx.Limits(max_connections=4),
        )
        self._session = secrets.token_hex(16)
        self._node: messages.Node | None = None
        self._open: dict[str, Metadata] = {}
        """What is known of messages that are to be answered."""
        self._ahead, self._untold = 0.0, ""
        """Seconds by which the server's clock is ahead of this machine's, where they do not agree, and what that is."""
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None

    def connect(self) -> None:
        request = messages.ActivateNodeRequest(public_key=public_bytes(self._key), heartbeat_interval=_PROMISED)
        self._node = messages.Node(node_id=self._call("activate-node", request, messages.ActivateNodeResponse).node_id)
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._heart.start()
        self._tell()

    def pull(self, timeout: float) -> Letter | None:
        self._tell()
        until = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            wait = str(int(min(max(until - began, 0.0), _WAIT)))
            pulled = self._call(
                "pull-messages",
                messages.PullMessagesRequest(node=self._node),
                messages.PullMessagesResponse,
                {WAIT_HEADER: wait},
            )
            for found, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
                return self._letter(found.metadata, tree)
            now = time.monotonic()
            if now >= until or self._closed.wait(min(max(began + _PAUSE - now, 0.0), until - now)):
                return None

    def push(self, letter: Letter, answer: Message) -> None:
        about = self._open.get(letter.identity)
        if about is None:
            return
        now = self._now()
        left = about.created_at + about.ttl - now
        reply = Metadata(
            about.run_id,
            "",
            self._node.node_id if self._node else 0,
            about.src_node_id,
            letter.identity,
            about.group_id,
            now,
            max(left, 1.0),
            about.message_type,
            dst_task_id=about.src_task_id or None,
        )
        parcel = wrapped(answer, reply)
        pushed = self._call(
            "push-messages",
            messages.PushMessagesRequest(
                node=self._node,
                messages_list=[envelope(reply, parcel.identity)],
                message_object_trees=[parcel.tree],
                clientapp_runtime_list=[0.0],
            ),
            messages.PushMessagesResponse,
        )
        for name in pushed.objects_to_push:
            request = messages.PushObjectRequest(
                node=self._node,
                run_id=about.run_id,
                session_id=pushed.session_id,
                object_id=name,
                object_content=parcel.contents[name],
            )
            self._call("push-object", request, messages.PushObjectResponse)
        self._open.pop(letter.identity, None)

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        if self._node is not None:
            with contextlib.suppress(UnreachableError):
                self._call(
                    "deactivate-node",
                    messages.DeactivateNodeRequest(node_id=self._node.node_id),
                    messages.DeactivateNodeResponse,
                )
        self._http.close()

    def _letter(self, about: Any, tree: Any) -> Letter | None:
        """A message whose objects are fetched; None where the server has dropped it meanwhile."""
        identity, contents = about.message_id, {}
        try:
            names = chain(tree)
        except ValueError:
            raise UnreachableError(f"The server at {self.address} sends messages that are not partita's.") from None
        for name in names:
            request = messages.PullObjectRequest(node=self._node, run_id=about.run_id, object_id=name)
            until = time.monotonic() + _ANSWER
            while not (answer := self._call("pull-object", request, messages.PullObjectResponse)).object_available:
                # Flower's own server announces a message before its objects have come
                if not answer.object_found or time.monotonic() > until or self._closed.wait(_ARRIVING):
                    return None
            contents[name] = answer.object_content
        confirmed = messages.ConfirmMessageReceivedRequest(
            node=self._node, run_id=about.run_id, message_object_id=identity
        )
        self._call("confirm-message-received", confirmed, messages.ConfirmMessageReceivedResponse)
        try:
            message = unwrapped(tree, contents, LARGEST, HEADER)
        except InputError as error:
            raise UnreachableError(f"A message of the server at {self.address} cannot be read: {error}") from None
        self._open = {identity: about}
        return Letter(identity, message)

    def _beat(self) -> None:
        """Tells the server that this process lives, also while it computes."""
        while not self._closed.wait(_BEAT):
            request = messages.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_PROMISED)
            with contextlib.suppress(UnreachableError, RuntimeError):  # it may have been closed meanwhile
                self._call("send-node-heartbeat", request, messages.SendNodeHeartbeatResponse)

    def _call(self, name: str, request: Any, kind: type[_Answer], further: dict[str, str] | None = None) -> _Answer:
        """What the server answers to a call; an `UnreachableError` says why there is nothing."""
        headers = {"content-type": PROTOBUF, "accept": PROTOBUF, SESSION_HEADER: self._session, **(further or {})}
        answer = self._posted(name, request.SerializeToString(), headers)
        if answer.status_code == httpx.codes.UNAUTHORIZED and self._adjusted(answer):
            answer = self._posted(name, request.SerializeToString(), headers)
        if answer.status_code != httpx.codes.OK:
            raise UnreachableError(self._refusal(answer))
        found: Any = kind()
        try:
            found.ParseFromString(answer.content)
        except Exception:
            raise UnreachableError(self._stranger("its answers are others")) from None
        return found

    def _posted(self, name: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
        try:
            return self._http.post(name, content=content, headers=headers | signed(self._key, self._now()))
        except httpx.ProxyError as error:
            raise UnreachableError(f"the proxy does not connect to {self.address} ({error}): ask who runs it") from None
        except httpx.TransportError as error:
            raise UnreachableError(self._silence(error)) from None

    def _now(self) -> float:
        """The time of day at the server, as far as it is known."""
        return time.time() + self._ahead

    def _adjusted(self, answer: httpx.Response) -> bool:
        """Whether a call was refused for its time, and the next goes by the server's; differing clocks are told of."""
        apart, detail = _apart(answer.headers.get("date", "")), _said(answer).get("detail")
        if abs(apart - self._ahead) <= (_SKEW if detail == CLOCK else _OBVIOUS):
            return False
        self._ahead = apart if abs(apart) > _SKEW else 0.0
        if self._ahead:
            behind = "behind" if apart > 0 else "ahead of"
            self._untold = (
                f"this machine's clock is {_span(abs(apart))} {behind} the server's: set the one that is wrong; until "
                "then this client goes by the server's"
            )
        return True

    def _tell(self) -> None:
        """Raises what the client's owner should know though calls are answered, once."""
        said, self._untold = self._untold, ""
        if said:
            raise UnreachableError(said)

    def _silence(self, error: httpx.TransportError) -> str:
        """Why there is no answer at all."""
        cause: BaseException | None = error
        while cause is not None:
            why = getattr(cause, "verify_message", "")
            if getattr(cause, "verify_code", 0) in _OUT_OF_TIME:
                return (
                    f"by this machine's clock the certificate of {self.address} is not good ({why}): set the clock, or "
                    "renew it at the server"
                )
            if isinstance(cause, ssl.SSLEOFError):
                return (
                    f"the connection to {self.address} ends as it begins: start the server, or correct server.address"
                )
            if isinstance(cause, ssl.SSLError):
                return self._stranger(why or cause.reason or str(cause))
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return f"nothing answers at {self.address} yet: start the server, or correct server.address"
        if self._node is None:
            return self._stranger(str(error) or type(error).__name__)
        return f"the connection to {self.address} has broken: the server has ended, or the network has failed"

    def _stranger(self, why: str) -> str:
        return f"what answers at {self.address} is not the server of this federation ({why}): correct server.address"

    def _refusal(self, answer: httpx.Response) -> str:
        """Why the server has refused a call."""
        said = _said(answer)
        if not said:
            return self._stranger(f"it answers {answer.status_code}")
        detail = sanitise(str(said.get("detail", "")), 200)
        if said.get("code") == REFUSED:
            return "a client of this name is at work already: stop the other one"
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return (
                f"the server does not accept its key ({detail}): use the folder that `partita federation credentials` "
                "wrote for this client"
            )
        if answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            return "the server refuses an answer, which is longer than it awaits: install its version of partita"
        if answer.status_code == httpx.codes.NOT_FOUND:
            return self._stranger("it knows no such call")
        return f"the server at {self.address} refuses a call ({answer.status_code}: {detail})"


def _trust(authority: Path | None, further: Path | None) -> ssl.SSLContext:
    """Trust in the federation's authority alone, or in the system's where there is none, and in a further one."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authority is None:
            trust.load_default_certs()
        for path in (authority, further):
            if path is not None:
                trust.load_verify_locations(cafile=str(path))
    except OSError as error:
        raise FederationError(
            f"The certificate {path} cannot be read ({error.strerror or error}): use the folder that `partita "
            "federation credentials` wrote for this client."
        ) from None
    return trust


def _proxy(url: str, further: Path | None) -> httpx.Proxy:
    """A proxy, which has a certificate of its own if it is called over TLS."""
    try:
        return httpx.Proxy(url, ssl_context=_trust(None, further) if url.startswith("https:") else None)
    except (ValueError, httpx.InvalidURL) as error:
        raise FederationError(
            f"The proxy {url!r} is none ({error}): give it as http://proxy.example.org:8080."
        ) from None


def _said(answer: httpx.Response) -> dict[str, Any]:
    """What the server says of a refusal; empty where it says nothing that can be read."""
    try:
        return dict(answer.json())
    except (ValueError, TypeError):
        return {}


def _apart(date: str) -> float:
    """Seconds by which the server's clock is ahead of this machine's; 0 if it does not say."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError):
        return 0.0


def _span(seconds: float) -> str:
    """A span of time in words."""
    if seconds < 120.0:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200.0 else f"{seconds / 3600:.1f} hours"
