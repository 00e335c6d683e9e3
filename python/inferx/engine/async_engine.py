"""AsyncEngine: the front end of an engine that runs in its own process.

One event loop talks to the engine over two Unix-domain sockets.  The front end tokenises, detokenises
and looks for stop strings; the engine process only sees token ids.  When that process dies, every
running request gets EngineDeadError and ``is_healthy`` turns false.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from inferx.engine import wire
from inferx.engine.args import EngineArgs
from inferx.engine.input_processor import InputProcessor
from inferx.engine.mailbox import Mailbox
from inferx.engine.output_processor import OutputProcessor
from inferx.engine.process import LaunchOptions
from inferx.engine.protocol import BACKGROUND_PRIORITY, EngineStats
from inferx.engine.scheduler import QueueFullError
from inferx.engine.structured.validator import GrammarValidator
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.errors import (
    EngineDeadError,
    EngineShutDownError,
    InvalidRequestError,
    LoadError,
    MemoryBudgetError,
    RequestFailedError,
    request_failure,
)
from inferx.loader import load_tokenizer, open_checkpoint
from inferx.outputs import RequestOutput
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams
from inferx.structured_outputs import StructuredOutputsParams

logger = logging.getLogger("inferx.engine")

# With work pending and no step finished for this long, the engine counts as stuck.
STALL_SECONDS = 60.0
# Most steps that are taken in a row when the front end is behind the engine; their outputs go out together.
STEPS_AT_ONCE = 8


class EngineObserver(Protocol):
    """Hears of every output, for metrics."""

    def observe_output(self, output: RequestOutput) -> None: ...


class AsyncEngine:
    """Start with ``await start()``; then ``generate`` from any task of the same event loop."""

    def __init__(
        self,
        args: EngineArgs,
        *,
        observer: EngineObserver | None = None,
        show_progress: bool = False,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        args.validate()
        self.args = args
        self.observer = observer
        self.show_progress = show_progress
        self.stall_seconds = stall_seconds
        checkpoint = open_checkpoint(args.model)
        try:
            self.tokenizer = load_tokenizer(checkpoint)
            self.config = checkpoint.config
            self.generation_config = dict(checkpoint.generation_config)
        finally:
            checkpoint.close()
        self.model_name = args.served_model_name or args.model
        self.vocab_size = self.config.vocab_size
        self.info: wire.EngineInfo | None = None
        self._queues: dict[str, Mailbox] = {}
        self._num_unfinished = 0
        self._stats = EngineStats()
        self._last_progress = time.monotonic()
        self._dead: str | None = None
        self.failure: str | None = None  # why the engine ended by itself
        self._closing = False
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._directory: str | None = None

    # ---- life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the process and wait until the model is loaded.

        LoadError, MemoryBudgetError or InvalidRequestError as the engine raised them; EngineDeadError when
        the process ended without a word.
        """
        self._directory = tempfile.mkdtemp(prefix="inferx-")
        self._context = zmq.asyncio.Context()
        self._to_core = self._context.socket(zmq.PUSH)
        self._from_core = self._context.socket(zmq.PULL)
        # No limit on queued messages: a full queue would drop or block aborts.
        for socket, name in ((self._to_core, "to_core"), (self._from_core, "from_core")):
            socket.set_hwm(0)
            socket.bind(f"ipc://{self._directory}/{name}")
        options = LaunchOptions(
            args=self.args,
            to_core=f"ipc://{self._directory}/to_core",
            from_core=f"ipc://{self._directory}/from_core",
            show_progress=self.show_progress,
        )
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "inferx.engine.process",
            stdin=asyncio.subprocess.PIPE,
            # Out of the terminal's process group: Ctrl-C is for the front end to handle.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(options) + b"\n")
        try:
            await self._process.stdin.drain()
            self.info = await self._wait_until_ready()
        except BaseException:
            await self.shutdown()
            raise
        self.inputs = InputProcessor(
            self.tokenizer,
            vocab_size=self.info.vocab_size,
            max_model_len=self.info.max_model_len,
            max_num_seqs=self.info.max_num_seqs,
            eos_token_ids=self.config.eos_token_ids,
        )
        self.outputs = OutputProcessor(self.tokenizer)
        eos = {*self.config.eos_token_ids, *self.tokenizer.eos_token_ids}
        self.grammars = GrammarValidator(Vocabulary(self.tokenizer, eos, self.vocab_size))
        self._stats = self._idle_stats()
        self._last_progress = time.monotonic()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch_process())]

    async def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the process; requests still running get EngineDeadError.  May be called twice."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._fail_all("the engine was shut down before the request had finished")
        if self.info is not None:
            self.grammars.close()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(zmq.ZMQError):
                await self._to_core.send(wire.encoder.encode(wire.Shutdown()), zmq.NOBLOCK)
            try:
                await asyncio.wait_for(self._process.wait(), timeout)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._directory is not None:
            self._to_core.close(linger=0)
            self._from_core.close(linger=0)
            self._context.term()
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    async def _wait_until_ready(self) -> wire.EngineInfo:
        assert self._process is not None
        died = asyncio.create_task(self._process.wait())
        message = asyncio.ensure_future(self._from_core.recv())
        try:
            await asyncio.wait({died, message}, return_when=asyncio.FIRST_COMPLETED)
            if not message.done():
                # A last word may be on its way although the process has ended.
                await asyncio.wait({message}, timeout=1.0)
            if not message.done():
                raise EngineDeadError(
                    f"the engine process ended with code {self._process.returncode} while loading"
                )
            reply = wire.from_core_decoder.decode(message.result())
        finally:
            died.cancel()
            message.cancel()
        if isinstance(reply, wire.Ready):
            return reply.info
        assert isinstance(reply, wire.StartupFailed)
        if reply.kind == "memory":
            raise MemoryBudgetError(reply.message)
        if reply.kind == "load":
            raise LoadError(reply.message)
        if reply.kind == "invalid":
            raise InvalidRequestError(reply.message, reply.param)
        raise EngineDeadError(f"the engine failed to start: {reply.message}")

    # ---- requests ----------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        assert self.info is not None, "the engine is not started"
        return self.info.max_model_len

    @property
    def max_num_seqs(self) -> int:
        assert self.info is not None, "the engine is not started"
        return self.info.max_num_seqs

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    async def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        arrival_time: float | None = None,
        pooling: PoolingParams | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield deltas until the request has finished; leaving the iterator early aborts it.

        pooling: an embedding is wanted, which the only item brings; ``params`` is not looked at.

        InvalidRequestError before anything is queued or when the scheduler refuses; QueueFullError when
        ``max_waiting`` requests wait, unless the priority is that of background work; RequestFailedError
        when this request failed inside the engine; EngineDeadError when the process is gone.
        """
        self._check_alive()
        if pooling is None and isinstance(params, SamplingParams) and params.structured_outputs is not None:
            await self.check_structured_outputs(params.structured_outputs)
        if request_id in self._queues:
            raise InvalidRequestError(f"request_id {request_id!r} is already in use", "request_id")
        options: Any = {"priority": priority, "cache_salt": cache_salt, "arrival_time": arrival_time}
        if pooling is not None:
            pooling.validate(self.config.hidden_size)
            request = self.inputs.make_pooling_request(request_id, prompt_token_ids, pooling, **options)
        else:
            request = self.inputs.make_request(request_id, prompt_token_ids, params, **options)
        queue = Mailbox()
        if not self._queues:
            self._last_progress = time.monotonic()
        counts = priority < BACKGROUND_PRIORITY
        if counts:
            self._check_capacity()
            self._num_unfinished += 1
        self._queues[request_id] = queue
        finished = False
        try:
            self.outputs.add_request(request)
            await self._send(wire.AddRequest(request))
            while not finished:
                item = await queue.get()
                if isinstance(item, Exception):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            self._queues.pop(request_id, None)
            self._num_unfinished -= counts
            self.outputs.abort(request_id)
            if not finished and self._dead is None and not self._closing:
                await asyncio.shield(self._send(wire.AbortRequest(request_id)))

    async def check_structured_outputs(self, params: StructuredOutputsParams) -> None:
        """Try a grammar in a child process, off the event loop; verdicts are remembered.

        InvalidRequestError (param "structured_outputs") when it is wrong, can match nothing, or takes too
        much time or memory; QueueFullError when others' grammars take all the time.
        """
        if not self.grammars.known(params):
            await asyncio.to_thread(self.grammars.check, params)

    async def abort(self, request_id: str) -> None:
        """Drop a request; its iterator ends with RequestFailedError."""
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put_nowait(RequestFailedError(f"request {request_id} was aborted"))
            await self._send(wire.AbortRequest(request_id))

    # ---- state ---------------------------------------------------------------------------------

    def is_healthy(self) -> tuple[bool, str]:
        """Health means progress: false when the process is gone, or busy without finishing a step."""
        if self._dead is not None:
            return False, self._dead
        if self.info is None:
            return False, "the engine is loading"
        silent = time.monotonic() - self._last_progress
        if self._queues and silent > self.stall_seconds:
            return False, f"{len(self._queues)} requests are pending and no step finished for {silent:.0f} s"
        return True, "ok"

    @property
    def num_unfinished(self) -> int:
        """Requests that run, wait or are on their way to the engine, background work aside."""
        return self._num_unfinished

    @property
    def queue_capacity(self) -> int | None:
        """Most unfinished requests: those that may run and those that may wait.  None: no limit."""
        if self.args.max_waiting is None or self.info is None:
            return None
        return self.info.max_num_seqs + self.args.max_waiting

    def _check_capacity(self) -> None:
        capacity = self.queue_capacity
        if capacity is not None and self._num_unfinished >= capacity:
            raise QueueFullError(f"the waiting queue of {self.args.max_waiting} requests is full")

    def stats(self) -> EngineStats:
        """The latest snapshot the engine sent."""
        return self._stats

    @property
    def process_id(self) -> int | None:
        """Of the engine process, for tests and monitoring."""
        return None if self._process is None else self._process.pid

    # ---- background ------------------------------------------------------------------------------

    async def _send(self, message: wire.ToCore) -> None:
        await self._to_core.send(wire.encoder.encode(message))

    async def _receive(self) -> None:
        try:
            for count in itertools.count(1):
                message = wire.from_core_decoder.decode(await self._from_core.recv())
                self._last_progress = time.monotonic()
                if isinstance(message, wire.Step):
                    self._stats = message.stats
                    await self._deliver(message)
                    if count % STEPS_AT_ONCE == 0:
                        # Receiving what is there already does not wait: others would get no turn.
                        await asyncio.sleep(0)
                elif isinstance(message, wire.Rejected):
                    self._put(message.request_id, _rejection(message))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a bug here must not leave clients waiting for ever
            logger.exception("the engine's receiver failed")
            self.failure = f"the engine's receiver failed: {type(error).__name__}: {error}"
            self._fail_all(self.failure)

    async def _deliver(self, step: wire.Step) -> None:
        for output in step.outputs:
            if output.request_id not in self._queues:
                continue
            try:
                result = self.outputs.process(output)
            except Exception as error:
                # Detokenising one request failed: end that one, keep the others.
                logger.exception("processing the output of %s failed", output.request_id)
                self._put(output.request_id, RequestFailedError(f"{type(error).__name__}: {error}"))
                await self._send(wire.AbortRequest(output.request_id))
                continue
            for index in result.to_finish:
                await self._send(wire.FinishSample(output.request_id, index))
            if result.error is not None:
                self._put(output.request_id, request_failure(result.error))
            elif result.request_output is not None:
                if self.observer is not None:
                    self.observer.observe_output(result.request_output)
                self._put(output.request_id, result.request_output)

    def _put(self, request_id: str, item: RequestOutput | Exception) -> None:
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put_nowait(item)

    async def _watch_process(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        if not self._closing:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            logger.error("the engine process has ended (%s)", how)
            self.failure = f"the engine process has ended ({how})"
            self._fail_all(self.failure)

    def _fail_all(self, reason: str) -> None:
        self._dead = self._dead or reason
        self._stats = self._idle_stats()
        for queue in self._queues.values():
            queue.put_nowait(self._death())

    def _idle_stats(self) -> EngineStats:
        """The latest counters with the gauges of an engine that runs nothing."""
        info = self.info
        blocks = 0 if info is None else info.num_blocks
        return msgspec.structs.replace(
            self._stats,
            num_running=0,
            num_waiting=0,
            num_blocks=blocks,
            num_free_blocks=blocks,
            num_cached_blocks=0,
            kv_cache_usage=0.0,
            total_parameters=0 if info is None else info.total_parameters,
            active_parameters=0 if info is None else info.active_parameters,
        )

    def _death(self) -> EngineDeadError:
        assert self._dead is not None
        return (EngineShutDownError if self._closing else EngineDeadError)(self._dead)

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._death()
        if self.info is None:
            raise EngineDeadError("the engine is not started")


def _rejection(message: wire.Rejected) -> Exception:
    if message.kind == "queue_full":
        return QueueFullError(message.message)
    if message.kind == "failed":
        return RequestFailedError(message.message)
    return InvalidRequestError(message.message, message.param)
