"""Running the server: engine process first, then the socket opens; SIGTERM ends both in order."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn

from inferx.engine.args import EngineArgs
from inferx.errors import EngineDeadError, InferxError
from inferx.heap import settle_heap
from inferx.server.app import create_app
from inferx.server.args import ServerArgs
from inferx.server.batch.service import start_batches
from inferx.server.engine_api import AsyncEngine
from inferx.server.http_protocol import REFUSED_CONNECTIONS, BoundedConfig, ConnectionLimits
from inferx.server.lifecycle import Lifecycle
from inferx.server.sampling import neutral_differences, sampling_defaults

# From the engine's end until every response has been closed.
UNWIND_SECONDS = 5
# File descriptors that are no connections: files, the engine's sockets, pipes.
OTHER_DESCRIPTORS = 64


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling: it re-raises signals, which would end the process
    before the engine is stopped."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], None],
        on_drain: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        super().__init__(config)
        self.on_started = on_started
        self.on_drain = on_drain
        self.draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_started()

    def stop(self) -> None:
        """First call: finish what runs, with the socket still open to say so.  Second: drop it."""
        if self.draining is None and self.on_drain is not None and not self.should_exit:
            self.draining = asyncio.get_running_loop().create_task(self._drain(self.on_drain))
        elif self.should_exit or self.draining is not None:
            self.force_exit = True
            if self.draining is not None:
                self.draining.cancel()
        self.should_exit = self.should_exit or self.on_drain is None or self.force_exit

    async def _drain(self, drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await drain()
        finally:
            self.should_exit = True


async def serve(engine: AsyncEngine, args: ServerArgs, sock: socket.socket) -> None:
    """Start the engine, serve on the bound socket until a signal, stop the engine."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    try:
        if not await _unless(stopping, engine.start()):
            return
        settle_heap()
        config = _config(engine, args)
        start_batches(config.app.state.context)
        lifecycle = config.app.state.context.lifecycle
        server = Server(
            config,
            on_started=lambda: _announce(sock, engine, args),
            on_drain=lambda: _finish(lifecycle, engine, args.shutdown_timeout),
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        if not stopping.is_set():
            await server.serve(sockets=[sock])
        if engine.failure is not None:
            # A supervisor that restarts what failed must see that this did.
            raise EngineDeadError(engine.failure)
    finally:
        await engine.shutdown()


async def _finish(lifecycle: Lifecycle, engine: AsyncEngine, seconds: float) -> None:
    """Give running requests some time; what is left then ends with an error that the client can read."""
    if lifecycle.active:
        print(
            f"inferx: {lifecycle.active} requests have {seconds:g} s to finish; a second signal drops them",
            file=sys.stderr,
            flush=True,
        )
    if not await lifecycle.drain(seconds):
        # Not through the requests one by one: the engine may be what does not answer.
        await engine.shutdown()
        await lifecycle.drain(UNWIND_SECONDS)


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


def _config(engine: AsyncEngine, args: ServerArgs) -> BoundedConfig:
    limits = ConnectionLimits(
        _allow_descriptors(args.max_connections), args.header_timeout, args.body_timeout, args.write_timeout
    )
    return BoundedConfig(
        create_app(engine, args),
        limits,
        loop="asyncio",
        ws="none",
        lifespan="off",
        # Its warnings are about what clients send, which the metrics count.
        log_level="info" if args.access_log else "error",
        access_log=args.access_log,
        h11_max_incomplete_event_size=args.max_header_bytes,
        timeout_keep_alive=args.keep_alive_timeout,
        timeout_graceful_shutdown=UNWIND_SECONDS,
        server_header=False,
    )


def _allow_descriptors(max_connections: int) -> int:
    """Have the system allow that many connections; how many it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + REFUSED_CONNECTIONS + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return max(1, wanted - REFUSED_CONNECTIONS - OTHER_DESCRIPTORS)
    return max_connections


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


def _announce(sock: socket.socket, engine: AsyncEngine, args: ServerArgs) -> None:
    if args.generation_config == "auto":
        changed = neutral_differences(sampling_defaults(engine.generation_config))
        if changed:
            print(
                f"inferx: sampling defaults of the model's generation_config.json: {changed}; "
                "--generation-config none ignores them",
                file=sys.stderr,
            )
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
