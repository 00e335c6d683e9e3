"""What a caller gets wrong is a 4xx in OpenAI's shape, whatever the bytes; the server stays alive."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import EngineDeadError, FakeEngine, InvalidRequestError, RequestFailedError
from fake_server import sse

JSON = {"content-type": "application/json"}
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")


def check_error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = json.loads(response.content.decode("utf-8"))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"{:",
        b'{"prompt": "x"',
        b"",
        b"[]",
        b"null",
        b'"x"',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "messages": [], "tokens": "x", "temperature": 1e999}',
        b'{"prompt": "x"} trailing',
        b"[" * 100_000,
        b'{"a":' * 10_000,
        b'{"prompt": ' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda b: repr(b[:20]),
)
def test_malformed_bodies(client: httpx.Client, path: str, body: bytes) -> None:
    check_error(client.post(path, content=body, headers=JSON), 400)
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("n", 0),
        ("n", 1000),
        ("n", "2"),
        ("seed", 2**70),
        ("presence_penalty", 3),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop", 5),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stop_token_ids", [999999]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", list(range(2000))),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [999999]),
        ("bad_words", [""]),
        ("bad_words", [5]),
        ("logit_bias", {"999999": -100}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"007": 1}),
        ("logit_bias", {"7.0": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": -1e308}),
        ("logit_bias", {"5": "5"}),
        ("logit_bias", {"5": None}),
        ("logit_bias", {str(i): 1 for i in range(5000)}),
        ("logit_bias", [1]),
        ("priority", "high"),
        ("priority", 2**40),
        ("cache_salt", ""),
        ("cache_salt", "x" * 300),
        ("stream", "yes"),
        ("stream_options", 5),
        ("ignore_eos", 1),
        ("model", 5),
    ],
)
def test_wrong_values_name_the_field(complete: Any, chat: Any, field: str, value: Any) -> None:
    for post in (complete, chat):
        if (field, value) == ("min_tokens", 17) and post is chat:
            continue  # chat's max_tokens is not 16
        param = post(expect=400, **{"stream": False, field: value})["error"]["param"]
        assert param is not None
        assert param.partition(".")[0].partition("[")[0] == field


def test_messages_quote_little_of_what_was_sent(complete: Any) -> None:
    for body in ({"temperature": "x" * 100_000}, {"model": "y" * 100_000}, {"stop": ["z" * 50_000]}):
        error = complete(expect=404 if "model" in body else 400, **body)["error"]
        assert len(error["message"]) < 400


@pytest.mark.parametrize(
    "name",
    ["../../etc", "/etc/passwd", "..%2f..%2f", "a\0b", "~", "C:\\x", "http://127.0.0.1/", "", "x" * 100_000],
    ids=lambda n: repr(n[:16]),
)
def test_model_names_are_keys_not_paths(client: httpx.Client, name: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }
    for path, body in bodies.items():
        error = check_error(client.post(path, json={**body, "model": name}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert len(error["message"]) < 300


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_other_content_types(client: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    error = check_error(client.post("/v1/completions", content=b'{"prompt":"x"}', headers=headers), 415)
    assert "Content-Type" in error["message"]


def test_content_type_parameters_are_fine(client: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/v1/completions", content=b'{"prompt":"x"}', headers=headers).status_code == 200


def test_unknown_endpoints_and_methods(client: httpx.Client) -> None:
    check_error(client.get("/v1/nothing"), 404)
    check_error(client.get("/v1/completions"), 405)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequestError("does not fit the pool of 16 blocks", "prompt"), 400),
        (RequestFailedError("non-finite logits"), 500),
        (EngineDeadError("the engine process has ended"), 503),
        (ZeroDivisionError("a bug"), 500),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_engine_errors_before_the_first_token(
    client: httpx.Client, engine: FakeEngine, error: Exception, status: int, stream: bool
) -> None:
    engine.fail = error
    for prompt in ("x", ["x", "y"]):
        response = client.post("/v1/completions", json={"prompt": prompt, "stream": stream})
        answer = check_error(response, status)
        assert "a bug" not in answer["message"]  # internals stay inside
    assert engine.running == set()


def test_engine_error_in_the_middle_of_a_stream(client: httpx.Client, engine: FakeEngine) -> None:
    engine.fail, engine.fail_after = RequestFailedError("non-finite logits"), 2
    response = client.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert response.status_code == 200
    events = sse(response.text)
    assert len(events) == 3
    assert events[-1]["error"]["message"] == "non-finite logits"


def test_a_long_wait_in_the_queue_keeps_the_stream_open(client: httpx.Client, engine: FakeEngine) -> None:
    engine.hold = True
    with client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        assert response.status_code == 200  # after first_output_grace
        chunks = response.iter_text()
        assert next(chunks).startswith(":")
        engine.hold = False
        rest = "".join(chunks)
    events = sse(rest)
    assert "".join(e["choices"][0]["text"] for e in events) == engine.answer


def test_an_error_after_a_long_wait_is_an_event(client: httpx.Client, engine: FakeEngine) -> None:
    engine.hold = True
    engine.fail = InvalidRequestError("too late", "prompt")
    with client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        chunks = response.iter_text()
        next(chunks)
        engine.hold = False
        events = sse("".join(chunks))
    assert events == [
        {"error": {"message": "too late", "type": "invalid_request_error", "param": "prompt", "code": None}}
    ]
