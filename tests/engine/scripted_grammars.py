"""Grammars of a Bench: they force the tokens that the model of ``simulator`` would choose anyway.

So a request's answer is the same however many of them come at once.  ``rng`` decides how many, and how long
a grammar takes to compile.
"""

from __future__ import annotations

import random
from typing import Any

from fake_device import FakeDevice, Truth
from simulator import COMPLETE

from inferx.engine.protocol import EngineRequest
from inferx.engine.structured.matcher import Taken


class ScriptedGrammars:
    """In place of ``StructuredRequests``.  requests: by id, to be kept up to date by the owner."""

    def __init__(self, device: FakeDevice, requests: dict[str, EngineRequest], rng: random.Random) -> None:
        self._device = device
        self._requests = requests
        self._rng = rng
        self._known: set[str] = set()
        self._compiling: list[str] = []

    def __len__(self) -> int:
        return len(self._known)

    def add(self, request_id: str, params: object) -> None:
        self._known.add(request_id)
        self._compiling.append(request_id)

    def discard(self, request_id: str) -> None:
        self._known.discard(request_id)

    def wait(self, seconds: float) -> None:
        self._device.seen["nothing but grammars to wait for"] += 1

    def take_compiled(self) -> list[tuple[str, str | None]]:
        done = [name for name in self._compiling if name in self._known and self._rng.random() < 0.5]
        self._compiling = [name for name in self._compiling if name in self._known and name not in done]
        return [(name, None) for name in done]

    def new_matcher(self, request_id: str) -> Any:
        if request_id not in self._known:
            return None
        return ScriptedMatcher(self._device, self._requests[request_id], self._rng)


class ScriptedMatcher:
    """Of one sample; which one comes to light by its tokens, and nothing is forced that depends on it."""

    def __init__(self, device: FakeDevice, request: EngineRequest, rng: random.Random) -> None:
        n = request.sampling_params.n
        self._samples = [Truth(request, index) for index in range(n)]
        self._rng = rng
        self._number = 0
        self._seen = device.seen
        # Tokens from there on are not forced, so that a fault comes to pass: the sampler fails on the first
        # one, or the position before it cannot be computed.
        limits = [number for name, _, number in device.spoilt if name == request.request_id]
        if request.request_id in device.broken:
            position = device.broken[request.request_id][1]
            limits.append(max(0, position - len(request.prompt_token_ids) + 1))
        self._limit = min(limits, default=1 << 30)

    def take(self, token_id: int) -> Taken:
        taken = [token_id]
        self._go_on(token_id)
        more = self._rng.choice([0, 0, 1, 3, self._rng.randint(1, 40)])
        while more and taken[-1] != COMPLETE and self._number < self._limit:
            following = {self._next(truth) for truth in self._samples}
            if len(following) > 1:
                break
            taken.append(following.pop())
            self._go_on(taken[-1])
            more -= 1
        self._seen["several tokens at once"] += len(taken) > 1
        return Taken(taken, taken[-1] == COMPLETE)

    def _next(self, truth: Truth) -> int:
        return truth.token(truth.prompt_len + self._number)

    def _go_on(self, token_id: int) -> None:
        self._samples = [truth for truth in self._samples if self._next(truth) == token_id]
        self._number += 1
