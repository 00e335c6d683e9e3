"""/v1/embeddings: the protocol over the scripted engine; the official client and transformers, for real."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fake_engine import FakeEngine
from real_server import RealServer
from tests.engine.core_harness import save_tiny_llama

from inferx.errors import EngineDeadError, RequestFailedError
from inferx.server.args import ServerArgs

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def embed(client: httpx.Client) -> Any:
    def post(expect: int = 200, **body: Any) -> Any:
        response = client.post("/v1/embeddings", json=body)
        assert response.status_code == expect, response.text
        return response.json()

    return post


def vectors(answer: Any) -> list[list[float]]:
    """The scripted engine's: first token, last token, number of tokens, 0."""
    return [item["embedding"] for item in answer["data"]]


# Protocol


def test_each_form_of_input(embed: Any) -> None:
    assert vectors(embed(input="abc")) == [[97, 99, 3, 0]]
    assert vectors(embed(input=["a", "bc"])) == [[97, 97, 1, 0], [98, 99, 2, 0]]
    assert vectors(embed(input=[5, 6, 7])) == [[5, 7, 3, 0]]
    assert vectors(embed(input=[[5, 6, 7], [9]])) == [[5, 7, 3, 0], [9, 9, 1, 0]]
    assert vectors(embed(input=["a", [9]])) == [[97, 97, 1, 0], [9, 9, 1, 0]]


def test_the_answer(embed: Any) -> None:
    answer = embed(input=["abc", "d"], model="fake-model")
    assert (answer["object"], answer["model"]) == ("list", "fake-model")
    assert [(d["object"], d["index"]) for d in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (4, 4)


def test_base64_is_float32(embed: Any) -> None:
    (text,) = vectors(embed(input=[5, 6, 7], encoding_format="base64"))
    assert struct.unpack("<4f", base64.b64decode(text)) == (5, 7, 3, 0)


def test_truncation_keeps_the_end(embed: Any) -> None:
    assert vectors(embed(input=[1, 2, 3, 4], truncate_prompt_tokens=2)) == [[3, 4, 2, 0]]
    assert vectors(embed(input=[1] * 600 + [2], truncate_prompt_tokens=-1)) == [[1, 2, 512, 0]]
    assert vectors(embed(input=[7] * 512)) == [[7, 7, 512, 0]]  # no room for a token is needed


def test_dimensions(embed: Any) -> None:
    assert vectors(embed(input=[5, 6], dimensions=2)) == [[5, 6]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ""}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": [7] * 513}, "input"),
        ({"input": "x" * 100_000}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "dimensions": "2"}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "normalize": 1}, "normalize"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"input": "a", "priority": 2**31 - 1}, "priority"),
        ({"input": "a", "cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_is_wrong_is_named(embed: Any, engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    error = embed(400, **body)["error"]
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert engine.seen == []


def test_another_model(embed: Any) -> None:
    assert embed(404, input="a", model="another")["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("failure", "status"), [(RequestFailedError("injected"), 500), (EngineDeadError("gone"), 503)]
)
def test_failures(embed: Any, engine: FakeEngine, failure: Exception, status: int) -> None:
    engine.fail = failure
    embed(status, input=["a", "b"])
    engine.fail = None
    embed(input="a")
    assert not engine.running


def test_a_full_queue(make_server: Any) -> None:
    engine = FakeEngine()
    engine.queue_capacity = 2
    url = make_server(ServerArgs(), engine).url
    assert httpx.post(f"{url}/v1/embeddings", json={"input": ["a", "b"]}).status_code == 200
    assert httpx.post(f"{url}/v1/embeddings", json={"input": ["a", "b", "c"]}).status_code == 400


# The real thing


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def real(tiny: Path) -> Iterator[RealServer]:
    options = ("--max-num-batched-tokens", "32", "--max-num-seqs", "8", "--activations", "float32")
    server = RealServer("--model", str(tiny), "--pooling", "mean", "--threads", "1", *options)
    yield server
    assert server.idle()
    assert server.stop() == 0
    assert "Traceback" not in server.log


def test_the_official_client_gets_what_transformers_computes(real: RealServer, tiny: Path) -> None:
    import torch
    from transformers import AutoModel

    oracle = AutoModel.from_pretrained(tiny, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate((1, 5, 31, 32, 33, 150))]
    client = openai.OpenAI(base_url=f"{real.url}/v1", api_key="none")
    name = client.models.list().data[0].id
    # The client asks for base64 by itself and decodes it.
    answer = client.embeddings.create(model=name, input=prompts)
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    plain = client.embeddings.create(model=name, input=prompts, encoding_format="float")
    last = client.embeddings.create(model=name, input=prompts, extra_body={"pooling": "last"})
    short = client.embeddings.create(model=name, input=prompts, dimensions=16)
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            states = oracle(torch.tensor([prompt])).last_hidden_state[0].double().numpy()
        for found, wanted in (
            (answer, states.mean(0)),
            (plain, states.mean(0)),
            (last, states[-1]),
            (short, states.mean(0)[:16]),
        ):
            vector = np.array(found.data[i].embedding)
            assert vector.shape == wanted.shape
            assert np.abs(vector - wanted / np.linalg.norm(wanted)).max() < 1e-3
        assert answer.data[i].embedding == plain.data[i].embedding


def test_alone_and_in_a_batch_and_beside_generation(real: RealServer) -> None:
    texts = [f"text number {i} " * (1 + i % 7) for i in range(24)]
    together = real.post("/v1/embeddings", input=texts)["data"]
    real.text(max_tokens=5)
    for i in (0, 6, 23):
        (alone,) = real.post("/v1/embeddings", input=texts[i])["data"]
        assert alone["embedding"] == together[i]["embedding"]
