"""Running the server: engine process first, then the socket opens; SIGTERM ends both in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn

from inferx.engine.args import EngineArgs
from inferx.errors import EngineDeadError, InferxError
from inferx.server.app import create_app
from inferx.server.args import ServerArgs
from inferx.server.engine_api import AsyncEngine

# Longer than the pause between two requests of an interactive client.
KEEP_ALIVE_SECONDS = 60
# From the engine's end until every response has been closed.
UNWIND_SECONDS = 10


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling: it re-raises signals, which would end the process
    before the engine is stopped."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], None],
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self.on_started = on_started
        self.on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_started()

    def stop(self) -> None:
        """First call: finish what runs.  Second: drop it."""
        if self.should_exit:
            self.force_exit = True
        else:
            self.should_exit = True
            self.on_stop()


async def serve(engine: AsyncEngine, args: ServerArgs, sock: socket.socket) -> None:
    """Start the engine, serve on the bound socket until a signal, stop the engine."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    ending: list[asyncio.Task[None]] = []
    try:
        if not await _unless(stopping, engine.start()):
            return
        server = Server(
            _config(engine, args),
            on_started=lambda: _announce(sock),
            on_stop=lambda: ending.append(asyncio.create_task(_end_later(engine, args.shutdown_timeout))),
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        if not stopping.is_set():
            await server.serve(sockets=[sock])
        if engine.failure is not None:
            # A supervisor that restarts what failed must see that this did.
            raise EngineDeadError(engine.failure)
    finally:
        for task in ending:
            task.cancel()
        await engine.shutdown()


async def _end_later(engine: AsyncEngine, seconds: float) -> None:
    """Give running requests some time; what is left then ends with an error that the client can read."""
    await asyncio.sleep(seconds)
    await engine.shutdown()


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work`` to its end, or cancel it when asked to stop; whether it ended by itself."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for pending in (task, stop):
            pending.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


def _config(engine: AsyncEngine, args: ServerArgs) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(engine, args),
        loop="asyncio",
        http="h11",  # the same parser, and the same limits, whatever else is installed
        ws="none",
        lifespan="off",
        log_level="info" if args.access_log else "warning",
        access_log=args.access_log,
        h11_max_incomplete_event_size=args.max_header_bytes,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=args.shutdown_timeout + UNWIND_SECONDS,
        server_header=False,
    )


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening: a taken port is found before a model is loaded.

    InferxError naming the address when it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError) as error:
        raise InferxError(f"cannot listen on {host}:{port}: {error}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(sock: socket.socket) -> None:
    url = url_of(sock)
    print(f"inferx serves {url} (API base {url}/v1)", file=sys.stderr, flush=True)


def run_server(engine_args: EngineArgs, args: ServerArgs, *, show_progress: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C.  LoadError and its kin come out of here before the port opens."""
    from inferx.engine.async_engine import AsyncEngine as ProcessEngine

    sock = bind(args.host, args.port)
    try:
        engine = ProcessEngine(engine_args, show_progress=show_progress)
        asyncio.run(serve(engine, args, sock))
    finally:
        sock.close()
