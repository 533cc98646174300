"""A reverse proxy in front of Flower's server that forwards only clients' calls.

Flower serves clients and run submission on one port, and authenticates only clients. Therefore Flower's server listens
on loopback, and only this proxy is reachable from other machines.
"""

import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Annotated

import typer

from partita.errors import MissingExtraError

__all__ = ["PATIENCE", "gate"]

try:
    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

_CALL = re.compile("[a-z][a-z-]*")
"""The name of a Flower fleet API call."""
PATIENCE = 120.0
"""Timeout in seconds for Flower to answer a call."""
_HOP_BY_HOP = {"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"}


def gate(inner: str, authority: Path) -> Starlette:
    """An ASGI application that forwards clients' calls to Flower on this machine."""
    client = httpx.AsyncClient(
        base_url=f"https://{inner}", verify=ssl.create_default_context(cafile=str(authority)), timeout=PATIENCE
    )

    async def forward(request: Request) -> Response:
        call = request.path_params.get("call")
        if call is not None and not _CALL.fullmatch(call):
            return Response(status_code=404)
        try:
            answer = await client.request(
                request.method,
                "/health" if call is None else f"/v1/fleet/{call}",
                content=request.stream(),
                headers=_kept(request.headers.items()),
            )
        except httpx.TransportError:
            return Response("Flower's server does not answer.", status_code=502)
        return Response(answer.content, answer.status_code, _kept(answer.headers.items()))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    routes = [Route("/health", forward), Route("/v1/fleet/{call}", forward, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


def _kept(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _HOP_BY_HOP}


def _open_gate(
    folder: Annotated[Path, typer.Argument(help="Where the certificates are.")],
    host: Annotated[str, typer.Option(help="Where to listen.")],
    port: Annotated[int, typer.Option(help="At which port.")],
    inner: Annotated[str, typer.Option(help="Flower's own address on this machine.")],
) -> None:
    """Runs the proxy until it is stopped."""
    uvicorn.run(
        gate(inner, folder / "ca.crt"),
        host=host,
        port=port,
        ssl_certfile=str(folder / "server.pem"),
        ssl_keyfile=str(folder / "server.key"),
        access_log=False,
    )


if __name__ == "__main__":
    typer.run(_open_gate)
