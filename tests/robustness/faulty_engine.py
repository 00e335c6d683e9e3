"""The engine process with faults in it: patches the engine's own classes, then runs ``engine.process``.

Started by ``live_server`` instead of ``inferx.engine.process``.  Each fault waits for a request whose prompt
begins with its own token, so that everybody else meets the real engine:

    python faulty_engine.py REPORT

REPORT: a file for one JSON line with what the core still holds when it has been told to shut down.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from inferx.engine import process
from inferx.engine.core import EngineCore
from inferx.engine.runner import ModelRunner
from inferx.engine.sampler import Sampler
from inferx.engine.scheduler import Scheduler
from inferx.engine.structured.compiler import GrammarCompiler
from inferx.engine.structured.requests import StructuredRequests

# First tokens of prompts; bytes that no other test sends.
FORWARD = 1  # the forward pass of the prompt raises
FORWARD_LATER = 2  # ... of the third token
SAMPLER = 3
RESULTS = 4  # what waits for the step raises, not its launch
MEMORY = 5  # MemoryError in the forward pass
ADMISSION = 6  # add_request raises something that is no refusal
SCHEDULER = 7  # planning a step raises: nothing can go on
EXIT = 8
SEGFAULT = 11
HANG = 12  # no progress
GARBAGE = 14  # a message that the front end cannot read
REFUSED_COPY = 15


class Injected(RuntimeError):
    """Says in its name where an error came from."""


def starts_with(prompt: Any, token: int) -> bool:
    return len(prompt) > 0 and prompt[0] == token


def patch_runner() -> None:
    launch = ModelRunner.launch

    def faulty_launch(self: ModelRunner, plan: Any, state_of: Any) -> Any:
        for entry in plan.scheduled:
            prompt = entry.seq.request.engine_request.prompt_token_ids
            if starts_with(prompt, FORWARD):
                raise Injected("forward")
            if starts_with(prompt, MEMORY):
                raise MemoryError("injected: no memory for the forward pass")
            if starts_with(prompt, FORWARD_LATER) and entry.first_position >= len(prompt) + 2:
                raise Injected("forward of a later token")
            if starts_with(prompt, EXIT):
                os._exit(7)
            if starts_with(prompt, SEGFAULT):
                ctypes.string_at(0)
            if starts_with(prompt, HANG):
                time.sleep(3600)
        handle = launch(self, plan, state_of)
        if any(starts_with(e.seq.request.engine_request.prompt_token_ids, RESULTS) for e in plan.scheduled):
            return FailingHandle()
        return handle

    ModelRunner.launch = faulty_launch  # type: ignore[method-assign]


class FailingHandle:
    def results(self) -> Any:
        raise Injected("results")


def patch_sampler() -> None:
    launch = Sampler.launch

    def faulty_launch(self: Sampler, logits: Any, rows: Any) -> Any:
        if any(starts_with(row.prompt_token_ids, SAMPLER) for row in rows):
            raise Injected("sampler")
        return launch(self, logits, rows)

    Sampler.launch = faulty_launch  # type: ignore[method-assign]


def patch_core() -> None:
    add_request = EngineCore.add_request
    schedule = Scheduler.schedule

    def faulty_add(self: EngineCore, request: Any) -> None:
        add_request(self, request)
        if starts_with(request.prompt_token_ids, ADMISSION):
            raise Injected("admission")

    def faulty_schedule(self: Scheduler) -> Any:
        if any(starts_with(r.engine_request.prompt_token_ids, SCHEDULER) for r in self.requests.values()):
            raise Injected("scheduler")
        return schedule(self)

    EngineCore.add_request = faulty_add  # type: ignore[method-assign]
    Scheduler.schedule = faulty_schedule  # type: ignore[method-assign]


def patch_messages() -> None:
    handle = process._handle

    def faulty_handle(core: EngineCore, message: Any, outbox: Any) -> bool:
        request = getattr(message, "request", None)
        if request is not None and starts_with(request.prompt_token_ids, GARBAGE):
            outbox.send(b"\xc1 not msgpack")
            return True
        return handle(core, message, outbox)

    process._handle = faulty_handle


def patch_grammars() -> None:
    """By the text of the grammar: a regular expression with COMPILE or MATCHER in it."""
    compile_ = GrammarCompiler._compile
    new_matcher = StructuredRequests.new_matcher

    def faulty_compile(self: GrammarCompiler, source: Any) -> Any:
        if "COMPILE" in source.text:
            raise ValueError("injected: compiling")
        return compile_(self, source)

    def faulty_matcher(self: StructuredRequests, request_id: str) -> Any:
        matcher = new_matcher(self, request_id)
        params = self._requests[request_id].params.structured_outputs if matcher is not None else None
        if params is not None and "MASK" in (params.regex or ""):
            matcher.fill_mask = raise_injected
        if params is not None and "TAKE" in (params.regex or ""):
            matcher.take = raise_injected
        return matcher

    GrammarCompiler._compile = faulty_compile  # type: ignore[method-assign]
    StructuredRequests.new_matcher = faulty_matcher  # type: ignore[method-assign]


def raise_injected(*arguments: Any) -> Any:
    raise Injected("matcher")


def report_at_the_end(path: Path) -> None:
    """Wraps the serving loop: when it ends by a Shutdown, says what is left in the core."""
    serve = process._serve

    def reporting_serve(core: EngineCore, inbox: Any, outbox: Any) -> None:
        serve(core, inbox, outbox)
        stats = core.stats()
        left = {
            "states": len(core._states),
            "requests": len(core.scheduler.requests),
            "steps": len(core._steps),
            "with_history": len(core._with_history),
            "missing_blocks": stats.num_blocks - stats.num_free_blocks,
            "preemptions": stats.num_preemptions,
        }
        path.write_text(json.dumps(left))

    process._serve = reporting_serve


if __name__ == "__main__":
    patch_runner()
    patch_sampler()
    patch_core()
    patch_messages()
    patch_grammars()
    report_at_the_end(Path(sys.argv[1]))
    sys.exit(process.main())
