"""Completions whose tokens reach the front end in any pieces: streamed, whole, and one by one are the same.

Engines hand over several tokens at once (grammars that force text, a front end that was busy); characters,
stop strings and special tokens lie anywhere in them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, entry
from fake_server import ThreadServer, sse
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inferx.engine.output_processor import OutputProcessor
from inferx.engine.protocol import EngineOutput, RequestMetrics
from inferx.outputs import RequestOutput
from inferx.sampling_params import SamplingParams
from inferx.server.args import ServerArgs


class SplitEngine(FakeEngine):
    """answers: the tokens of each sample.  sizes: of the pieces they come in, over and over."""

    def reset(self) -> None:
        super().reset()
        self.answers: list[list[int]] = [[]]
        self.sizes = [1]

    async def generate(
        self, prompt_token_ids: list[int], params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        request = self.inputs.make_request(request_id, prompt_token_ids, params)
        outputs = OutputProcessor(self.tokenizer)
        outputs.add_request(request)
        states = [_State(self.answers[i % len(self.answers)]) for i in range(params.n)]
        turn = 0
        while any(not s.finished for s in states):
            for index, state in enumerate(states):
                if state.finished:
                    continue
                size = self.sizes[turn % len(self.sizes)]
                turn += 1
                result = outputs.process(state.take(request_id, index, size, params, prompt_token_ids))
                if result.request_output is not None:
                    yield result.request_output
                if result.to_finish:
                    state.finished = True
                    last = EngineOutput(request_id, index, [], finish_reason="stop", metrics=RequestMetrics())
                    final = outputs.process(last).request_output
                    assert final is not None
                    yield final


@dataclass
class _State:
    tokens: list[int]
    position: int = 0
    finished: bool = field(default=False)

    def take(
        self, request_id: str, index: int, size: int, params: SamplingParams, prompt: list[int]
    ) -> EngineOutput:
        piece = self.tokens[self.position : self.position + size]
        self.position += len(piece)
        output = EngineOutput(request_id, index, piece)
        if params.logprobs is not None:
            output.logprobs = [entry(token, params.logprobs) for token in piece]
        if params.prompt_logprobs is not None and self.position == len(piece):
            _, *rest = prompt
            output.prompt_logprobs = [None, *(entry(t, params.prompt_logprobs) for t in rest)]
        if self.position >= len(self.tokens):
            self.finished = True
            output.finish_reason = "length"
            output.metrics = RequestMetrics(num_prompt_tokens=1)
        return output


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadServer]:
    server = ThreadServer(SplitEngine(), ServerArgs())
    yield server
    server.stop()


@pytest.fixture(scope="module")
def http(server: ThreadServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def joined(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Each choice of a stream, put together as a client would."""
    choices: dict[int, dict[str, Any]] = {}
    for item in (choice for event in events for choice in event["choices"]):
        whole = choices.setdefault(
            item["index"], {"text": "", "ids": [], "tokens": [], "offsets": [], "end": None}
        )
        assert whole["end"] is None, "something came after the end"
        whole["text"] += item["text"]
        whole["ids"] += item["token_ids"]
        if item["logprobs"] is not None:
            whole["tokens"] += item["logprobs"]["tokens"]
            whole["offsets"] += item["logprobs"]["text_offset"]
        if item["finish_reason"] is not None:
            whole["end"] = (item["finish_reason"], item["stop_reason"])
    return choices


def ask(http: httpx.Client, engine: SplitEngine, sizes: list[int], body: dict[str, Any], stream: bool) -> Any:
    engine.sizes = sizes
    options = {"stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
    response = http.post("/v1/completions", json={**body, **options})
    assert response.status_code == 200, response.text
    events = sse(response.text) if stream else [response.json()]
    usage = events[-1]["usage"]
    return joined(events), usage["completion_tokens"]


TOKENIZER = FakeEngine().tokenizer
PIECES = ["Hello", " world", "é", "😀", "\n\n", ".", "the", "ing", "a", " ", "\u0301", "世"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
STOPPING = [*PIECES, "o w", "llo", "d.", "😀😀", "éé", "\n\n.", "aa"]
STOPS = st.lists(st.sampled_from(STOPPING), max_size=3, unique=True)
# Bytes as tokens, so characters come in parts and parts that are no character come too.
TOKENS = st.one_of(
    TEXTS.map(TOKENIZER.encode),
    TEXTS.map(lambda text: [TOKENIZER.encode(c)[0] if c.isascii() else b for c in text for b in c.encode()]),
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=16),
).filter(bool)


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(
    answers=st.lists(TOKENS, min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    stop=STOPS,
    include=st.booleans(),
    logprobs=st.sampled_from([None, 0, 2]),
    echo=st.booleans(),
    skip=st.booleans(),
)
@example([[240, 159, 152, 128] * 3], [3], ["😀😀"], False, 2, True, True)
@example([[240, 159, 152]], [2], [], False, 0, False, True)
@pytest.mark.timeout(300)
def test_pieces_make_no_difference(
    http: httpx.Client,
    server: ThreadServer,
    answers: list[list[int]],
    sizes: list[int],
    stop: list[str],
    include: bool,
    logprobs: int | None,
    echo: bool,
    skip: bool,
) -> None:
    engine: Any = server.engine
    engine.answers = answers
    body = {
        "prompt": "Hello é",
        "n": len(answers),
        "temperature": 1,
        "max_tokens": 100,
        "stop": stop,
        "include_stop_str_in_output": include,
        "logprobs": logprobs,
        "echo": echo,
        "skip_special_tokens": skip,
        "return_token_ids": True,
    }
    one_by_one = ask(http, engine, [1], body, stream=False)
    for pieces in ([1], sizes):
        for stream in (False, True):
            assert ask(http, engine, pieces, body, stream) == one_by_one
    choices, num_tokens = one_by_one
    assert num_tokens == sum(len(c["ids"]) for c in choices.values())
    for index, tokens in enumerate(answers):
        check_against_decode(choices[index], tokens, stop, include, "Hello é" if echo else "", skip)


def check_against_decode(
    choice: dict[str, Any], tokens: list[int], stop: list[str], include: bool, echo: str, skip: bool
) -> None:
    """The tokenizer's own decode of all tokens, cut at the first stop string, is the text."""
    whole = TOKENIZER.decode(tokens, skip_special_tokens=skip)
    text = choice["text"]
    assert text.startswith(echo)
    text = text[len(echo) :]
    if not any(s in whole for s in stop):
        assert text == whole
        assert choice["ids"] == tokens
        assert choice["end"] == ("length", None)
        return
    reason, matched = choice["end"]
    assert reason == "stop"
    assert matched in stop
    # Whichever completes first wins.
    end = min(whole.find(s) + len(s) for s in stop if s in whole)
    assert whole[: len(text)] == text
    assert end == len(text) + (0 if include else len(matched))
    assert choice["ids"] == tokens[: len(choice["ids"])]
