"""Acceptance cases A01, A05, A07, A13, A19x, B03, C01 and F08x over HTTP on the real model.

A09 and B01 are in test_real_limits, A17 in test_real_api, F04, F06 and F10x in test_connections and
test_real_security.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_server import sse, wait_until
from real_server import COUNTING, RealServer, streamed_text

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
STORY = "Once upon a time, there was a little"
ARGUMENTS = (
    "--max-num-seqs",
    "8",
    "--max-num-batched-tokens",
    "256",
    "--max-model-len",
    "1024",
    "--generation-config",
    "none",
)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer(*ARGUMENTS)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.fixture(autouse=True)
def _alive_and_idle(server: RealServer) -> Iterator[None]:
    yield
    wait_until(server.idle, 5)
    assert server.client.get("/health", timeout=1).status_code == 200


def tokens_of(server: RealServer, prompt: str, **body: Any) -> list[str]:
    return server.complete(prompt, logprobs=0, **body)["choices"][0]["logprobs"]["tokens"]


class TestStop:
    @pytest.mark.parametrize("prompt", [COUNTING, STORY])
    def test_a01_over_several_tokens(self, server: RealServer, prompt: str) -> None:
        """A stop string that begins and ends inside tokens, with at least one whole token between."""
        tokens = tokens_of(server, prompt, max_tokens=32)
        text = "".join(tokens)
        long = [i for i in range(2, len(tokens)) if len(tokens[i]) > 3]
        first = long[0] if long else 3
        begin = len("".join(tokens[:first])) + (1 if long else 0)
        end = len("".join(tokens[: first + 3])) + 1
        stop = text[begin:end]
        wanted = text[: text.find(stop)]
        whole = server.complete(prompt, max_tokens=32, stop=[stop])["choices"][0]
        chunks = server.complete(prompt, max_tokens=32, stop=[stop], stream=True)
        last = chunks[-1]["choices"][0]
        assert whole["text"] == streamed_text(chunks) == wanted
        for choice in (whole, last):
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)

    def test_a19x_inside_one_token(self, server: RealServer) -> None:
        tokens = tokens_of(server, STORY, max_tokens=32)
        text = "".join(tokens)
        word = next(t for t in tokens if len(t.strip()) >= 4).strip()
        for stop in (word[:3], word[1:3], word[-1:]):
            wanted = text[: text.find(stop)]
            for stream in (False, True):
                answer = server.complete(STORY, max_tokens=32, stop=stop, stream=stream)
                got = streamed_text(answer) if stream else answer["choices"][0]["text"]
                assert got == wanted
                last = answer[-1] if stream else answer
                assert last["choices"][0]["finish_reason"] == "stop"

    def test_stop_text_of_several_bytes(self, server: RealServer) -> None:
        """Characters that take several tokens each: the stop is found, and no half of one is shown."""
        ids = server.tokenize("é歪😀!")
        assert len(ids) > 4
        forced = {"max_tokens": 12, "logit_bias": {str(ids[0]): 100}, "return_token_ids": True}
        assert server.complete("x", **forced)["choices"][0]["token_ids"] == [ids[0]] * 12
        prompt = "é歪😀é歪😀é歪😀é歪😀é歪😀"
        text = server.text(prompt, max_tokens=24)
        for stop in [c for c in "歪😀é" if c in text][:2]:
            wanted = text[: text.find(stop)]
            for stream in (False, True):
                answer = server.complete(prompt, max_tokens=24, stop=[stop, "never there"], stream=stream)
                got = streamed_text(answer) if stream else answer["choices"][0]["text"]
                assert got == wanted

    def test_shown_when_asked_for(self, server: RealServer) -> None:
        text = server.text(STORY)
        stop = text[8:14]
        for stream in (False, True):
            body = {"max_tokens": 32, "stop": stop, "include_stop_str_in_output": True, "stream": stream}
            answer = server.complete(STORY, **body)
            got = streamed_text(answer) if stream else answer["choices"][0]["text"]
            assert got == text[: text.find(stop) + len(stop)]

    def test_not_looked_for_before_min_tokens(self, server: RealServer) -> None:
        text = server.text(max_tokens=24)
        for stream in (False, True):
            answer = server.complete(max_tokens=24, stop=" 8", min_tokens=12, stream=stream)
            got = streamed_text(answer) if stream else answer["choices"][0]["text"]
            assert " 8" in got
            assert got == text

    def test_stop_token_ids(self, server: RealServer) -> None:
        choice = server.complete(STORY, max_tokens=16, return_token_ids=True)["choices"][0]
        stop = choice["token_ids"][5]
        first = choice["token_ids"].index(stop)
        for stream in (False, True):
            body = {"max_tokens": 16, "stop_token_ids": [stop], "return_token_ids": True, "stream": stream}
            answer = server.complete(STORY, **body)
            last = (answer[-1] if stream else answer)["choices"][0]
            assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
            ids = [t for c in answer for t in c["choices"][0]["token_ids"]] if stream else last["token_ids"]
            assert ids == choice["token_ids"][: first + 1]


class TestUsage:
    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    @pytest.mark.parametrize("n", [1, 2])
    def test_a05(self, server: RealServer, path: str, n: int) -> None:
        body: dict[str, Any] = {"max_tokens": 8, "n": n}
        if "chat" in path:
            body["messages"] = [{"role": "user", "content": "Hello!"}]
        else:
            body["prompt"] = "Hello"
        whole = server.post(path, **body)["usage"]
        assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]
        assert whole["completion_tokens"] <= 8 * n
        for options in ({}, {"stream_options": {}}, {"stream_options": None}):
            assert not any(chunk.get("usage") for chunk in server.post(path, stream=True, **body, **options))
        wanted = {"include_usage": True}
        chunks = server.post(path, stream=True, stream_options=wanted, **body)
        assert [bool(chunk.get("usage")) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1]["choices"] == []
        assert all(chunk["choices"] for chunk in chunks[:-1])
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert {k: chunks[-1]["usage"][k] for k in counts} == {k: whole[k] for k in counts}
        each = server.post(
            path, stream=True, stream_options={**wanted, "continuous_usage_stats": True}, **body
        )
        seen = [chunk["usage"]["completion_tokens"] for chunk in each]
        assert seen == sorted(seen)
        assert seen[-1] == whole["completion_tokens"]
        assert {chunk["usage"]["prompt_tokens"] for chunk in each} == {whole["prompt_tokens"]}
        for stream in ({}, {"stream": False}):
            error = server.post(path, expect=400, stream_options=wanted, **body, **stream)["error"]
            assert error["param"] == "stream_options"


class TestMaxTokens:
    def test_a07_scoring(self, server: RealServer) -> None:
        prompt = "Your answer: Yes"
        body = {"max_tokens": 0, "echo": True, "logprobs": 1}
        answer = server.complete(prompt, **body)
        chunks = server.complete(prompt, stream=True, stream_options={"include_usage": True}, **body)
        choice, usage = answer["choices"][0], answer["usage"]
        assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
        assert usage["completion_tokens"] == 0
        assert len(choice["logprobs"]["tokens"]) == usage["prompt_tokens"]
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert all(x < 0 for x in choice["logprobs"]["token_logprobs"][1:])
        assert streamed_text(chunks) == prompt
        parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"]]
        joined = [x for p in parts for x in p["token_logprobs"]]
        assert joined == choice["logprobs"]["token_logprobs"]
        assert chunks[-1]["usage"]["completion_tokens"] == 0
        ids = server.tokenize(prompt)
        assert server.complete([ids, ids], **body)["choices"][1]["logprobs"] == choice["logprobs"]
        error = server.complete(prompt, max_tokens=0, expect=400)["error"]
        assert error["param"] == "max_tokens"

    @pytest.mark.parametrize("value", [-1, "5", 1.5, True, [5]])
    def test_a07_wrong_values(self, server: RealServer, value: Any) -> None:
        assert server.complete(max_tokens=value, expect=400)["error"]["param"] == "max_tokens"
        assert server.chat(max_tokens=value, expect=400)["error"]["param"] == "max_tokens"

    def test_a07_null_and_omitted(self, server: RealServer) -> None:
        assert server.complete(max_tokens=None)["choices"] == server.complete()["choices"]
        usage = server.chat(max_tokens=None, stop="\n")["usage"]
        assert usage["total_tokens"] <= 1024


def test_a13_fields_that_sdks_add(server: RealServer) -> None:
    plain = server.text()
    assert server.text(foo=1, extra={"a": []}, user="u") == plain
    message = {"role": "user", "content": "Hello!", "id": "x", "name": "bob", "annotations": []}
    body = {"max_tokens": 4, "temperature": 0}
    odd = server.client.post("/v1/chat/completions", json={"messages": [message], "foo": 1, **body})
    assert odd.status_code == 200
    for raw in (b"{:", b"", b"[]", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}'):
        response = server.client.post(
            "/v1/completions", content=raw, headers={"content-type": "application/json"}
        )
        assert 400 <= response.status_code < 500
        assert set(json.loads(response.content.decode("utf-8"))["error"]) == {
            "message",
            "type",
            "param",
            "code",
        }


class TestPromptLogprobs:
    """Case B03: the values do not depend on what the prefix cache holds."""

    @staticmethod
    def score(server: RealServer, ids: list[int]) -> list[float | None]:
        choice = server.complete(ids, echo=True, logprobs=1, max_tokens=1)["choices"][0]
        values = choice["logprobs"]["token_logprobs"]
        assert len(values) == len(ids) + 1
        return values[:-1]

    def test_b03(self, server: RealServer) -> None:
        long = [(7 * i) % 4000 + 300 for i in range(49)]
        short = long[:33]
        other = RealServer(*ARGUMENTS)
        try:
            here = [self.score(server, ids) for ids in (short, long, short, long)]
            there = [self.score(other, ids) for ids in (long, short, long)]
        finally:
            other.stop()
        assert here[0] == here[2] == there[1] == here[1][:33]
        assert here[1] == here[3] == there[0] == there[2]
        fresh = [(11 * i) % 4000 + 300 for i in range(49)]
        server.complete(fresh, max_tokens=4)  # fills the cache without any logits kept
        cached = server.complete(fresh, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        assert self.score(server, fresh) == self.score(server, fresh)
        salted = server.complete(fresh, echo=True, logprobs=1, max_tokens=1, cache_salt="another")
        values = salted["choices"][0]["logprobs"]["token_logprobs"][:-1]
        assert values == self.score(server, fresh)  # what nothing was shared with says the same


class TestTinyTemperatures:
    """Case C01: the limit of the softmax is argmax."""

    OPTIONS = (
        # At 1e-3, logits as close as that are still a matter of chance; those of counting are not.
        *({"temperature": t, "seed": 1} for t in (0, 1e-12, 1e-6, 1e-4, 1e-3)),
        *({"temperature": 1, "top_p": p, "seed": 1} for p in (1e-9, 1e-4)),
    )

    def test_c01(self, server: RealServer) -> None:
        greedy = server.text(COUNTING)
        with ThreadPoolExecutor(8) as pool:
            hot = pool.submit(server.text, COUNTING, temperature=1.5, seed=1)
            texts = list(pool.map(lambda options: server.text(COUNTING, **options), self.OPTIONS))
            hot.result()
        assert texts == [greedy] * len(texts)
        for options in self.OPTIONS:
            assert streamed_text(server.complete(COUNTING, max_tokens=32, stream=True, **options)) == greedy
        assert server.complete(COUNTING, top_p=0, expect=400)["error"]["param"] == "top_p"
        seeded = {"temperature": 1.0, "seed": 5}
        assert server.text(COUNTING, top_p=1, **seeded) == server.text(COUNTING, top_p=None, **seeded)


class TestLogitBias:
    """Case F08x."""

    def test_forced_and_forbidden(self, server: RealServer) -> None:
        token = server.tokenize(" the")[0]
        for stream in (False, True):
            body = {"max_tokens": 8, "return_token_ids": True, "stream": stream}
            answer = server.complete(STORY, logit_bias={str(token): 100}, **body)
            ids = [t for c in answer for t in c["choices"][0]["token_ids"]] if stream else None
            assert (ids or answer["choices"][0]["token_ids"]) == [token] * 8
        often = server.complete(STORY, max_tokens=32, return_token_ids=True)["choices"][0]["token_ids"]
        bias = {str(t): -100 for t in set(often)}
        never = server.complete(STORY, max_tokens=32, return_token_ids=True, logit_bias=bias)
        assert not set(often) & set(never["choices"][0]["token_ids"])

    @pytest.mark.parametrize(
        "raw", ["101", "-100.5", "1e308", "-1e308", "1e999", "NaN", "Infinity", '"5"', "null", "true", "[1]"]
    )
    def test_values_out_of_range(self, server: RealServer, raw: str) -> None:
        body = '{"prompt": "x", "logit_bias": {"5": ' + raw + "}}"
        response = server.client.post(
            "/v1/completions", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400

    @pytest.mark.parametrize("key", ["007", "7.0", "-1", "1e3", " 7", "٧", "49152"])
    def test_keys_that_are_no_token(self, server: RealServer, key: str) -> None:
        error = server.complete("x", logit_bias={key: 1}, expect=400)["error"]
        assert error["param"].startswith("logit_bias")

    def test_the_whole_vocabulary_stalls_nobody(self, server: RealServer) -> None:
        body = {"prompt": "x", "logit_bias": {str(i): 1 for i in range(49152)}}
        done, delays = threading.Event(), []

        def poll() -> None:
            while not done.is_set():
                started = time.monotonic()
                assert server.client.get("/health").status_code == 200
                delays.append(time.monotonic() - started)

        with ThreadPoolExecutor(2) as pool:
            polling = pool.submit(poll)
            streaming = pool.submit(server.complete, max_tokens=32, stream=True)
            for _ in range(5):
                response = server.client.post("/v1/completions", json=body)
                assert response.status_code == 400
                assert "1024" in response.json()["error"]["message"]
            done.set()
            polling.result()
            assert streamed_text(streaming.result()) == server.text()
        assert statistics.median(delays) < 0.5


class TestTruncation:
    def test_keeps_the_last_tokens(self, server: RealServer) -> None:
        prompt = "A long and winding road. " * 20 + STORY
        ids = server.tokenize(prompt)
        wanted = server.complete(ids[-9:], max_tokens=8, return_token_ids=True)["choices"][0]
        for stream in (False, True):
            for given in (prompt, ids):
                body = {"max_tokens": 8, "truncate_prompt_tokens": 9, "return_token_ids": True}
                answer = server.complete(given, stream=stream, **body)
                first = (answer[0] if stream else answer)["choices"][0]
                assert first["prompt_token_ids"] == ids[-9:]
                got = streamed_text(answer) if stream else first["text"]
                assert got == wanted["text"]
        echoed = server.complete(prompt, truncate_prompt_tokens=3, echo=True, max_tokens=1)["choices"][0]
        shown = server.post("/detokenize", tokens=ids[-3:])["prompt"]
        assert echoed["text"].startswith(shown)
        assert len(echoed["text"]) < len(STORY)

    def test_minus_one_keeps_what_fits(self, server: RealServer) -> None:
        ids = [(7 * i) % 4000 + 300 for i in range(3000)]
        for max_tokens, left in ((4, 1020), (None, 1008)):
            usage = server.complete(ids, max_tokens=max_tokens, truncate_prompt_tokens=-1, ignore_eos=True)[
                "usage"
            ]
            assert (usage["prompt_tokens"], usage["total_tokens"]) == (left, 1024)
        usage = server.chat("word " * 3000, truncate_prompt_tokens=-1, max_tokens=5, ignore_eos=True)["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1019, 5)

    @pytest.mark.parametrize("value", [0, -2, 1025, "5", 1.5])
    def test_wrong_values(self, server: RealServer, value: Any) -> None:
        for send in (server.complete, server.chat):
            error = send("x", truncate_prompt_tokens=value, expect=400)["error"]
            assert error["param"] == "truncate_prompt_tokens"


class TestOtherOptions:
    def test_ignore_eos_and_special_tokens(self, server: RealServer) -> None:
        end = server.tokenize("<|im_end|>")
        assert len(end) == 1
        forced = {"logit_bias": {str(end[0]): 100}, "max_tokens": 3, "return_token_ids": True}
        for stream in (False, True):
            for more, count, text in (
                ({}, 1, ""),
                ({"ignore_eos": True}, 3, ""),
                ({"ignore_eos": True, "skip_special_tokens": False}, 3, "<|im_end|>" * 3),
                ({"min_tokens": 2}, 3, None),
            ):
                answer = server.complete("x", stream=stream, **forced, **more)
                last = (answer[-1] if stream else answer)["choices"][0]
                ids = (
                    [t for c in answer for t in c["choices"][0]["token_ids"]] if stream else last["token_ids"]
                )
                assert len(ids) == count
                if text is not None:
                    assert ids == end * count
                    assert (streamed_text(answer) if stream else last["text"]) == text
                else:
                    assert end[0] not in ids[:2]
                    assert ids[2:] == end

    def test_allowed_token_ids(self, server: RealServer) -> None:
        allowed = server.tokenize(" the cat")
        for stream in (False, True):
            body = {"allowed_token_ids": allowed, "temperature": 1, "seed": 3, "max_tokens": 12}
            answer = server.complete("x", return_token_ids=True, stream=stream, **body)
            choices = [c["choices"][0] for c in answer] if stream else answer["choices"]
            assert {t for c in choices for t in c["token_ids"]} <= set(allowed)

    def test_every_form_of_prompt(self, server: RealServer) -> None:
        ids = [server.tokenize(p) for p in (COUNTING, STORY)]
        alone = [server.text(p) for p in (COUNTING, STORY)]
        for prompt in ([COUNTING, STORY], ids, [COUNTING, ids[1]]):
            for stream in (False, True):
                answer = server.complete(prompt, max_tokens=32, n=2, stream=stream)
                texts = [streamed_text(answer, i) for i in range(4)] if stream else None
                texts = texts or [c["text"] for c in answer["choices"]]
                assert texts == [alone[0], alone[0], alone[1], alone[1]]
        assert server.text(ids[0]) == alone[0]

    def test_salts_separate_and_priorities_pass(self, server: RealServer) -> None:
        prompt = [(13 * i) % 4000 + 333 for i in range(64)]

        def cached(**body: Any) -> int:
            usage = server.complete(prompt, max_tokens=1, **body)["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert cached(cache_salt="a") == 0
        assert cached(cache_salt="a") > 0
        assert cached(cache_salt="b") == 0
        assert cached(priority=-5) == 0  # without a salt: a namespace of its own
        assert server.complete("x", priority=2**31 - 1, expect=400)["error"]["param"] == "priority"

    def test_prompt_logprobs(self, server: RealServer) -> None:
        answer = server.complete(COUNTING, prompt_logprobs=2, max_tokens=1)
        entries = answer["choices"][0]["prompt_logprobs"]
        assert len(entries) == answer["usage"]["prompt_tokens"]
        assert entries[0] is None
        assert all(2 <= len(e) <= 3 for e in entries[1:])
        scored = server.complete(COUNTING, echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
        ids = server.tokenize(COUNTING)
        got = [e[str(t)]["logprob"] for e, t in zip(entries[1:], ids[1:], strict=True)]
        assert got == scored["token_logprobs"][1:]
        raw = {"prompt": COUNTING, "prompt_logprobs": 1, "stream": True}
        assert server.client.post("/v1/completions", json=raw).status_code == 400

    def test_an_error_in_a_stream_request_is_a_status(self, server: RealServer) -> None:
        for body in ({"n": 0}, {"prompt": [7] * 2000}, {"model": "no"}):
            response = server.client.post("/v1/completions", json={"prompt": "x", "stream": True, **body})
            assert response.status_code in (400, 404)
            assert "error" in response.json()
        ok = server.client.post("/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 1})
        assert sse(ok.text)
