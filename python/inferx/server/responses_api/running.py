"""A response being generated: while its client waits or listens, or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from inferx.server.chat_core import ChatDelta, ChatRun
from inferx.server.generation import OutputStream
from inferx.server.logprobs import chat_logprobs
from inferx.server.responses_api.builder import Event, ResponseBuilder
from inferx.server.responses_api.protocol import ResponsesRequest
from inferx.server.responses_api.store import Record, ResponseStore
from inferx.server.streaming import Framing, typed_event
from inferx.server.usage import response_metrics


class Generation:
    """A prepared conversation and the response it becomes."""

    def __init__(self, body: ResponsesRequest, run: ChatRun, record: Record, store: ResponseStore) -> None:
        self.body = body
        self.run = run
        self.record = record
        self.store = store

    @property
    def builder(self) -> ResponseBuilder:
        return self.record.builder

    async def events(self, outputs: OutputStream) -> AsyncGenerator[Event, None]:
        """Every event of the response.  It is kept (if it is to be) before the last one is out, so that
        whoever has seen it can go on from there."""
        for event in self.builder.start():
            yield event
        begun = False
        async for deltas in self.run.deltas(outputs):
            if not begun:
                begun = True
                for event in self.builder.begin():
                    yield event
            for delta in deltas:
                for event in self.builder.advance(delta, self._logprobs(delta)):
                    yield event
        last = self._finish()
        if self.body.stored and not self.record.background:
            self.store.add_finished(self.record)
        for event in last:
            yield event

    async def whole(self, outputs: OutputStream) -> dict[str, Any]:
        """The response object once everything has been generated."""
        try:
            async for _ in self.events(outputs):
                pass
        finally:
            await outputs.aclose()
        return self.builder.response()

    def framing(self) -> Framing:
        """How its events are written; an error is a last event of the response."""
        return Framing(typed_event, self._failed, end=b"")

    def _failed(self, error: Exception) -> bytes:
        return b"".join([typed_event(event) for event in self.builder.fail(error)])

    def _logprobs(self, delta: ChatDelta) -> list[dict[str, Any]]:
        if not self.body.with_logprobs:
            return []
        entries = chat_logprobs(delta.tokens, self.run.context.names, self.body.top_logprobs or 0)
        content: list[dict[str, Any]] = entries["content"]
        return content

    def _finish(self) -> list[Event]:
        choice = self.run.choices[0]
        metrics = response_metrics([choice.metrics])
        return self.builder.finish(choice.finish_reason, self.run.usage.as_dict(), metrics)

    # ---- background

    def start_in_background(self) -> None:
        """Run it whether or not anybody waits; 429 when too much runs so already."""
        self.store.add_running(self.record)
        self.record.task = asyncio.create_task(self._run_in_background())

    async def _run_in_background(self) -> None:
        log = self.record.log
        assert log is not None
        outputs = self.run.start()
        try:
            async for event in self.events(outputs):
                log.extend([event])
        except asyncio.CancelledError:
            self.builder.set_usage(self.run.usage.as_dict(), None)
            log.extend(self.builder.cancel())
        except Exception as error:
            log.extend(self.builder.fail(error))
        finally:
            log.close()
            self.store.add_finished(self.record)
            await outputs.aclose()


async def stop(record: Record) -> None:
    """End a background response that still runs, and its work in the engine."""
    task = record.task
    if task is None or task.done():
        return
    task.cancel()
    await asyncio.wait({task})
