"""A read-only status page for browsers, served on loopback only."""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from partita.errors import FederationError, InputError
from partita.federation.status import FederationStatus, to_json

__all__ = ["ADDRESS", "Page"]

ADDRESS = "127.0.0.1"
_HOSTS = (ADDRESS, "localhost")
"""The allowed Host headers; others are refused, which prevents DNS rebinding."""


class Page(ThreadingHTTPServer):
    """An HTTP server for the status page, which polls the status; `look` returns it."""

    def __init__(self, look: Callable[[], FederationStatus], port: int = 0) -> None:
        self.look = look
        self.text = resources.files("partita.federation").joinpath("page.html").read_text("utf-8")
        self.policy = _policy(self.text)
        try:
            super().__init__((ADDRESS, port), _Visit)
        except OSError as error:
            raise FederationError(
                f"Port {port} cannot be used ({error.strerror}): choose another with --port."
            ) from None

    @property
    def address(self) -> str:
        """The page's URL."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections closed by the browser."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Visit(BaseHTTPRequestHandler):
    """Handles one request; only GET of two paths is allowed."""

    server: Page
    timeout = 10.0

    def do_GET(self) -> None:
        """Sends the page or the status JSON."""
        if self.headers.get("Host", "").partition(":")[0] not in _HOSTS:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, f"Ask for {self.server.address}")
        elif self.path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.text)
        elif self.path == "/status.json":
            try:
                self._send(HTTPStatus.OK, "application/json", to_json(self.server.look()))
            except InputError as error:
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, "application/json", json.dumps({"error": str(error)}))
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """Adds strict security headers to every response."""
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the page polls every second."""


def _policy(page: str) -> str:
    """The Content-Security-Policy: only the page's own script and style (by hash) and requests to its own server."""
    digests = {}
    for tag in ("script", "style"):
        texts = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        digests[tag] = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {digests['script']}; style-src {digests['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
