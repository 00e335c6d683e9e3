"""The API on the real model, in the server's own process."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from fake_server import wait_until
from real_server import COUNTING, RealServer, streamed_text

pytestmark = [pytest.mark.real_model]
EMOJI = "😀歪é👨‍👩‍👧 "


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer("--max-num-seqs", "8", "--max-num-batched-tokens", "256", "--max-model-len", "4096")
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def counting(server: RealServer) -> str:
    """The fixed prompt's greedy answer."""
    text = server.text()
    assert text.startswith(" 7 8 9 10")
    return text


@pytest.fixture(autouse=True)
def _alive_and_idle(server: RealServer, counting: str) -> Iterator[None]:
    yield
    wait_until(server.idle, 5)
    assert server.client.get("/health", timeout=1).status_code == 200
    assert server.text() == counting


class TestText:
    def test_streamed_equals_whole_and_keeps_the_first_space(self, server: RealServer) -> None:
        prompt = "The three largest cities of France are"
        whole = server.text(prompt, max_tokens=48)
        assert whole.startswith(" ")
        assert streamed_text(server.complete(prompt, max_tokens=48, stream=True)) == whole

    def test_stop_string_over_several_tokens(self, server: RealServer, counting: str) -> None:
        tokens = server.complete(max_tokens=32, logprobs=0)["choices"][0]["logprobs"]["tokens"]
        assert "".join(tokens) == counting
        stop = counting[7:13]  # cuts tokens at both ends only where these are longer than a character
        wanted = counting[: counting.find(stop)]
        for stream in (False, True):
            answer = server.complete(max_tokens=32, stop=[stop], stream=stream)
            text = streamed_text(answer) if stream else answer["choices"][0]["text"]
            assert text == wanted
            last = answer[-1]["choices"][0] if stream else answer["choices"][0]
            assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)

    def test_stop_string_inside_a_token(self, server: RealServer) -> None:
        prompt = "Once upon a time, there was a little"
        tokens = server.complete(prompt, max_tokens=32, logprobs=0)["choices"][0]["logprobs"]["tokens"]
        text = "".join(tokens)
        word = next(t for t in tokens if len(t.strip()) >= 4)
        for stop in (word.strip()[:3], word.strip()[1:], text[3:25]):
            wanted = text[: text.find(stop)]
            assert server.text(prompt, stop=stop) == wanted
            assert streamed_text(server.complete(prompt, max_tokens=32, stop=stop, stream=True)) == wanted

    def test_stop_at_a_blank_line(self, server: RealServer) -> None:
        prompt = "List:\n\n1. apples\n\n2. pears\n\n"
        text = server.text(prompt, max_tokens=24)
        assert "\n\n" in text
        assert server.text(prompt, max_tokens=24, stop="\n\n") == text[: text.find("\n\n")]

    def test_characters_split_over_tokens(self, server: RealServer) -> None:
        body = {"max_tokens": 40, "logprobs": True, "top_logprobs": 5}
        answer = server.chat("Repeat: " + EMOJI * 6, **body)["choices"][0]
        content, items = answer["message"]["content"], answer["logprobs"]["content"]
        split = [i for i in items if not is_text(bytes(i["bytes"]))]
        assert split, "the answer has no character of several tokens; choose another prompt"
        assert bytes(itertools.chain.from_iterable(i["bytes"] for i in items)).startswith(
            content.encode()[:-3]
        )
        for item in items:
            values = [t["logprob"] for t in item["top_logprobs"]]
            assert len(values) == 5
            assert values == sorted(values, reverse=True)
            assert item["logprob"] == values[0]  # greedy
        chunks = server.chat("Repeat: " + EMOJI * 6, stream=True, **body)
        assert streamed_text(chunks) == content
        shown = [c["delta"].get("content") or "" for chunk in chunks[:-1] for c in chunk["choices"]]
        assert not any("\ufffd" in text for text in shown)

    def test_echo_and_logprobs(self, server: RealServer) -> None:
        prompt = "\n1. Carol has 20"
        choice = server.complete(prompt, echo=True, logprobs=1, max_tokens=5)["choices"][0]
        logprobs = choice["logprobs"]
        tokens = logprobs["tokens"]
        assert "".join(tokens) == choice["text"]
        assert choice["text"].startswith(prompt)
        assert logprobs["text_offset"] == [len("".join(tokens[:i])) for i in range(len(tokens))]
        assert {len(values) for values in logprobs.values()} == {len(tokens)}
        assert logprobs["token_logprobs"][0] is None
        assert all(x <= 0 for x in logprobs["token_logprobs"][1:])

    def test_scoring_agrees_with_generating(self, server: RealServer, counting: str) -> None:
        generated = server.complete(max_tokens=12, logprobs=0, return_token_ids=True)["choices"][0]
        prompt = [*generated["prompt_token_ids"], *generated["token_ids"]]
        scored = server.complete(prompt, max_tokens=0, echo=True, logprobs=1)
        assert scored["usage"]["completion_tokens"] == 0
        assert len(scored["choices"][0]["logprobs"]["tokens"]) == scored["usage"]["prompt_tokens"]
        # Bit for bit: decoding one by one and prefilling at once compute the same.
        got = scored["choices"][0]["logprobs"]["token_logprobs"][-12:]
        assert got == generated["logprobs"]["token_logprobs"]
        twice = server.complete(prompt, max_tokens=0, echo=True, logprobs=1)
        assert twice["choices"] == scored["choices"]

    def test_null_max_tokens_is_the_default(self, server: RealServer) -> None:
        default, null = server.complete(), server.complete(max_tokens=None)
        assert default["choices"] == null["choices"]
        assert default["usage"]["completion_tokens"] == 16


class TestUsage:
    def test_latency_parts_sum_to_the_whole(self, server: RealServer) -> None:
        prompt = "A long and winding road leads to many places. " * 12
        first, second = (server.complete(prompt, max_tokens=8, ignore_eos=True) for _ in range(2))
        for answer in (first, second):
            split = answer["metrics"]
            parts = [split[k] for k in ("queue_time", "prefill_time", "decode_time", "output_time")]
            assert sum(parts) + sum(split["stall_time"].values()) == pytest.approx(
                split["e2e_time"], rel=1e-6
            )
            cached, computed = split["cached_prompt_tokens"], split["computed_prompt_tokens"]
            assert cached + computed == answer["usage"]["prompt_tokens"]
            assert split["decode_steps"] == 7
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 64
        assert first["choices"] == second["choices"]

    def test_streamed_usage(self, server: RealServer) -> None:
        whole = server.chat(n=2, max_tokens=8)
        chunks = server.chat(n=2, max_tokens=8, stream=True, stream_options={"include_usage": True})
        assert chunks[-1]["choices"] == []
        usage = dict(chunks[-1]["usage"])
        usage.pop("prompt_tokens_details")
        assert usage == {k: v for k, v in whole["usage"].items() if k != "prompt_tokens_details"}
        assert not any(c.get("usage") for c in chunks[:-1])


class TestSampling:
    def test_bias_forces_and_forbids(self, server: RealServer, counting: str) -> None:
        forced = server.tokenize(" the")[0]
        body = {"max_tokens": 8, "return_token_ids": True}
        assert (
            server.complete(logit_bias={str(forced): 100}, **body)["choices"][0]["token_ids"] == [forced] * 8
        )
        first = server.complete(**body)["choices"][0]["token_ids"][0]
        assert first not in server.complete(logit_bias={str(first): -100}, **body)["choices"][0]["token_ids"]

    def test_wrong_ids_leave_neighbours_alone(self, server: RealServer, counting: str) -> None:
        bad: list[tuple[str, Any]] = [
            ("logit_bias", {"999999": -100}),
            ("logit_bias", {"-1": 5}),
            ("logit_bias", {"abc": 1}),
            ("stop_token_ids", [999999]),
            ("stop_token_ids", [-1]),
            ("allowed_token_ids", []),
            ("allowed_token_ids", [999999]),
        ]
        with ThreadPoolExecutor(1) as pool:
            neighbour = pool.submit(server.text)
            for name, value in bad:
                error = server.complete(expect=400, **{name: value})["error"]
                assert error["param"] == name
            assert neighbour.result() == counting

    def test_bad_words_in_either_form(self, server: RealServer) -> None:
        prompt = "Once upon a time, there was a little"
        text = server.text(prompt)
        words = [w.strip(".,") for w in text.split()[:-1]]
        word = next(w for w in words if len(server.tokenize(" " + w)) == 1 and len(w) > 2)
        for bad in (word, " " + word):
            assert word not in server.text(prompt, bad_words=[bad]).split()
        for stream in (False, True):
            answer = server.complete(
                prompt, bad_words=[word], n=8, temperature=1, seed=3, max_tokens=16, stream=stream
            )
            for i in range(8):
                got = streamed_text(answer, i) if stream else answer["choices"][i]["text"]
                assert f" {word} " not in f" {got} "
        phrase = " ".join(words[:2])
        assert phrase not in server.text(prompt, bad_words=[phrase])
        assert server.complete(expect=400, bad_words=[""])["error"]["param"] == "bad_words"

    def test_seed_reproduces(self, server: RealServer) -> None:
        body = {"temperature": 1.5, "top_p": 1.0, "seed": 11, "max_tokens": 24}
        assert server.text(**body) == server.text(**body)
        assert server.text(**body) != server.text(**{**body, "seed": 12})


class TestTraffic:
    def test_32_clients(self, server: RealServer) -> None:
        """Mixed lengths and modes at once, with the official client; each answer as alone."""
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        prompts = ["word " * (3 + 5 * (i % 8)) + f"number {i} is" for i in range(32)]

        def ask(i: int) -> str:
            options: Any = {"model": "smollm2-135m-instruct", "prompt": prompts[i], "temperature": 0}
            options["max_tokens"] = 4 + 3 * (i % 6)
            if i % 2:
                return client.completions.create(**options).choices[0].text
            return "".join(c.choices[0].text for c in client.completions.create(**options, stream=True))

        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(ask, range(32)))
        for i in (0, 7, 17, 31):
            assert ask(i) == together[i]
        assert all(together)

    def test_official_client(self, server: RealServer) -> None:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        messages: Any = [{"role": "user", "content": "What is the capital of Germany?"}]
        options: Any = {"model": client.models.list().data[0].id, "messages": messages, "temperature": 0}
        whole = client.chat.completions.create(**options, max_tokens=24)
        assert "Berlin" in (whole.choices[0].message.content or "")
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        stream = client.chat.completions.create(
            **options, max_tokens=24, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens

    @pytest.mark.parametrize("case", ["stream", "whole", "prefill", "queued", "samples"])
    def test_clients_that_leave(self, server: RealServer, case: str) -> None:
        endless: dict[str, Any] = {"prompt": COUNTING, "max_tokens": 1000, "ignore_eos": True}
        blockers = [Leaver(server.url, {**endless, "stream": True}) for _ in range(8 * (case == "queued"))]
        if blockers:
            wait_until(lambda: server.gauge("vllm:num_requests_running") == 8, 20)
        if case == "prefill":
            endless["prompt"] = [100 + i for i in range(3000)]
        gauge = "vllm:num_requests_waiting" if blockers else "vllm:num_requests_running"
        leaver = Leaver(
            server.url,
            {**endless, "stream": case in ("stream", "samples"), "n": 4 if case == "samples" else 1},
        )
        wait_until(lambda: server.gauge(gauge) >= 1, 10)
        leaver.leave()
        wait_until(lambda: server.gauge(gauge) == 0, 3)
        for blocker in blockers:
            blocker.leave()
        wait_until(server.idle, 5)

    def test_long_unbroken_texts_stall_nobody(self, server: RealServer, counting: str) -> None:
        """Long strings are refused quickly, while streams run and /health answers.  The last one is short
        enough that it has to be tokenised."""
        long_texts = ["a" * 1_000_000, "_" * 1_000_000, " " * 1_000_000, "歪" * 300_000, "a" * 300_000]
        done = threading.Event()
        delays: list[float] = []

        def poll() -> None:
            with httpx.Client(base_url=server.url, timeout=10) as client:
                while not done.is_set():
                    started = time.monotonic()
                    assert client.get("/health").status_code == 200
                    delays.append(time.monotonic() - started)
                    time.sleep(0.02)

        def refuse(text: str) -> float:
            started = time.monotonic()
            response = httpx.post(f"{server.url}/v1/completions", json={"prompt": text}, timeout=30)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["code"] == "context_length_exceeded"
            return time.monotonic() - started

        with ThreadPoolExecutor(10) as pool:
            polling = pool.submit(poll)
            streams = [pool.submit(server.complete, max_tokens=32, stream=True) for _ in range(4)]
            seconds = list(pool.map(refuse, long_texts))
            answers = [streamed_text(s.result()) for s in streams]
            done.set()
            polling.result()
        assert answers == [counting] * 4
        assert max(seconds) < 10
        assert sorted(delays)[int(len(delays) * 0.95)] < 0.5, delays


def is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class Leaver:
    """A client that reads whatever comes until it is told to leave."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        data = json.dumps(body).encode()
        length = f"Content-Length: {len(data)}"
        lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", length, "", "")
        self.leaving = threading.Event()
        self.connection = socket.create_connection((host, int(port)))
        self.connection.sendall("\r\n".join(lines).encode() + data)
        self.connection.settimeout(0.05)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while not self.leaving.is_set():
            with contextlib.suppress(TimeoutError):
                self.connection.recv(65536)

    def leave(self) -> None:
        self.leaving.set()
        self.thread.join()
        self.connection.close()
