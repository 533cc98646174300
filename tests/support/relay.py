"""A relay between clients and their server, as a process that may be killed and stopped: `relay.py PORT SERVER`."""

import asyncio
import contextlib
import socket
import sys


async def relay(port: int, server: int) -> None:
    """Passes on what comes, both ways; where the server does not listen, a connection ends at once."""

    async def passed(come: asyncio.StreamReader, onward: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await come.read(2**16):
                onward.write(data)
                await onward.drain()
        onward.close()

    async def connected(come: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", server)
        except OSError:
            return back.transport.abort()
        for one in (back, onward):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(passed(come, onward), passed(there, back))

    async with await asyncio.start_server(connected, "127.0.0.1", port) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(*map(int, sys.argv[1:3])))
