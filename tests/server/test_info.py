"""Models, health, version, tokenize, metrics; the official client against the scripted engine."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer

import inferx
from inferx.server.args import ServerArgs


def test_models(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert [m["id"] for m in listed["data"]] == ["fake-model"]
    assert listed["data"][0]["max_model_len"] == 512
    assert client.get("/v1/models/fake-model").json() == listed["data"][0]
    assert client.get("/v1/models/a/../b").status_code == 404
    assert client.get("/v1/models/..%2fetc").status_code == 404


def test_served_names(make_server: Any) -> None:
    url = make_server(ServerArgs(served_model_names=("one", "org/two"))).url
    assert [m["id"] for m in httpx.get(f"{url}/v1/models").json()["data"]] == ["one", "org/two"]
    assert httpx.get(f"{url}/v1/models/org/two").json()["id"] == "org/two"
    for name in ("one", "org/two"):
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x", "model": name}).json()
        assert answer["model"] == name
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "x", "model": "fake-model"}).status_code == 404


def test_health_follows_the_engine(client: httpx.Client, engine: FakeEngine) -> None:
    assert client.get("/health").status_code == 200
    engine.healthy = (False, "no step finished for 61 s")
    response = client.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "no step finished for 61 s"


def test_version(client: httpx.Client) -> None:
    assert client.get("/version").json() == {"version": inferx.__version__}


def test_tokenize_and_back(client: httpx.Client, engine: FakeEngine) -> None:
    text = "Hello world 😀<|im_end|>"
    answer = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert answer["tokens"] == engine.tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}
    again = client.post("/tokenize", json={"prompt": text, "messages": None, "return_token_strs": True})
    assert again.json() == answer  # null is not given


def test_tokenize_a_conversation_as_chat_does(client: httpx.Client, engine: FakeEngine, chat: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat(messages=messages)
    assert client.post("/tokenize", json={"messages": messages}).json()["tokens"] == engine.seen[-1][0]
    shorter = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert shorter["count"] < len(engine.seen[-1][0])


@pytest.mark.parametrize("tokens", [[-1], [10**9], ["a"], [1.5], 5, [True]])
def test_detokenize_refuses(client: httpx.Client, tokens: Any) -> None:
    response = client.post("/detokenize", json={"tokens": tokens})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tokens")


def metric(text: str, name: str, **labels: str) -> float:
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
            return float(line.split()[-1])
    raise AssertionError(f"{name} {labels} is not in:\n{text}")


def test_metrics(make_server: Any) -> None:
    server = make_server(ServerArgs())
    client = httpx.Client(base_url=server.url)
    body = {"prompt": "Hello world", "n": 2, "max_tokens": 5}
    answers = [client.post("/v1/completions", json=body).json() for _ in range(3)]
    client.post("/v1/completions", json={**body, "stream": True})
    text = client.get("/metrics").text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:num_preemptions_total",
    ):
        assert metric(text, name, model_name="fake-model") == 0
    for kind, count in (("total", 46_700_000_000), ("active", 12_900_000_000)):
        assert metric(text, "inferx:model_parameters", model_name="fake-model", kind=kind) == count
    assert metric(text, "vllm:generation_tokens_total", model_name="fake-model") == 40
    assert metric(text, "vllm:request_success_total", finished_reason="length") == 8
    samples, requests = 8, 4
    for name, count in (
        ("vllm:time_to_first_token_seconds", requests),
        ("vllm:inter_token_latency_seconds", samples * 4),
        ("vllm:e2e_request_latency_seconds", samples),
        ("vllm:request_queue_time_seconds", samples),
        ("vllm:request_prefill_time_seconds", samples),
        ("vllm:request_decode_time_seconds", samples),
        ("vllm:request_prompt_tokens", samples),
        ("vllm:request_generation_tokens", samples),
    ):
        assert metric(text, f"{name}_count", model_name="fake-model") == count, name
    assert metric(text, "vllm:request_generation_tokens_sum") == 40
    assert sum(a["usage"]["completion_tokens"] for a in answers) == 30


def test_sampling_defaults_come_from_the_model_unless_refused(
    make_server: Any, engine: FakeEngine, client: httpx.Client
) -> None:
    client.post("/v1/completions", json={"prompt": "x", "top_k": 3, "temperature": None})
    params = engine.seen[-1][1]
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 1.0)
    other = make_server(ServerArgs(generation_config="none"))
    httpx.post(f"{other.url}/v1/completions", json={"prompt": "x"})
    params = other.engine.seen[-1][1]
    assert (params.temperature, params.top_k) == (1.0, 0)


def test_every_sampling_field_arrives(complete: Any, engine: FakeEngine) -> None:
    fields = {
        "temperature": 0.25, "top_p": 0.5, "top_k": 9, "min_p": 0.125, "repetition_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 7, "stop_token_ids": [4],
        "bad_words": ["zzz"], "allowed_token_ids": [65, 66], "min_tokens": 2, "ignore_eos": True,
        "include_stop_str_in_output": True, "skip_special_tokens": False, "max_tokens": 3,
    }  # fmt: skip
    complete(**fields, logit_bias={"65": 1.5}, stop="q")
    params = engine.seen[-1][1]
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.logit_bias, params.stop) == ({65: 1.5}, ["q"])


class TestOfficialClient:
    @pytest.fixture
    def openai_client(self, fake_server: ThreadServer, engine: FakeEngine) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{fake_server.url}/v1", api_key="none", max_retries=0)

    def test_chat(self, openai_client: openai.OpenAI, engine: FakeEngine) -> None:
        messages: Any = [{"role": "user", "content": "hi"}]
        answer = openai_client.chat.completions.create(model="fake-model", messages=messages)
        assert answer.choices[0].message.content == engine.answer
        stream = openai_client.chat.completions.create(
            model="fake-model", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == engine.answer
        assert chunks[-1].usage == answer.usage

    def test_completions_and_models(self, openai_client: openai.OpenAI, engine: FakeEngine) -> None:
        answer = openai_client.completions.create(model="fake-model", prompt="Hello", logprobs=2)
        assert answer.choices[0].text == engine.answer
        assert answer.choices[0].logprobs is not None
        assert [m.id for m in openai_client.models.list()] == ["fake-model"]

    def test_errors_have_their_types(self, openai_client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            openai_client.completions.create(model="other", prompt="x")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            openai_client.completions.create(model="fake-model", prompt="x", temperature=-1, stream=True)
        assert bad.value.param == "temperature"
