"""Full queues, unknown fields, metrics of answers, CORS, and the description of it all."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import httpx
import jsonschema_rs
import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer, sse, wait_until

import inferx
from inferx.engine.scheduler import QueueFullError
from inferx.errors import EngineDeadError, EngineShutDownError
from inferx.server.args import ServerArgs
from inferx.server.errors import as_api_error
from inferx.server.openapi import STATUS_TEXTS
from inferx.server.unknown_fields import MAX_NAMES, OTHERS, unknown_fields

ROUTES_WITH_PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/tokenize": {"prompt": "x"},
}


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    for line in client.get("/metrics").text.splitlines():
        if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
            return float(line.split()[-1])
    return 0.0


class TestFullQueue:
    @pytest.fixture
    def full(self, make_server: Any) -> Any:
        engine = FakeEngine()
        engine.queue_capacity = 2
        engine.hold = True
        server = make_server(ServerArgs(), engine)
        with ThreadPoolExecutor(2) as pool:
            held = [
                pool.submit(httpx.post, f"{server.url}/v1/completions", json={"prompt": "x"}) for _ in "ab"
            ]
            wait_until(lambda: engine.num_unfinished == 2)
            yield server
            engine.hold = False
            assert [h.result().status_code for h in held] == [200, 200]

    @pytest.mark.parametrize("path", ROUTES_WITH_PROMPTS)
    @pytest.mark.parametrize("stream", [False, True])
    def test_more_is_refused(self, full: ThreadServer, path: str, stream: bool) -> None:
        response = httpx.post(full.url + path, json={**ROUTES_WITH_PROMPTS[path], "stream": stream})
        assert response.status_code == 429
        error = response.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "queue_full", None)
        assert 1 <= int(response.headers["retry-after"]) <= 60
        with httpx.Client(base_url=full.url) as client:
            assert client.get("/health").status_code == 200
            assert metric(client, "inferx:http_refusals_total", code="queue_full") >= 1
            assert metric(client, "inferx:http_responses_total", endpoint=path, status="429") >= 1
        assert len(full.engine.seen) == 2

    def test_room_comes_back(self, full: ThreadServer) -> None:
        full.engine.hold = False
        wait_until(lambda: full.engine.num_unfinished == 0)
        assert httpx.post(f"{full.url}/v1/completions", json={"prompt": ["x", "y"]}).status_code == 200

    def test_several_prompts_need_as_many_places(self, make_server: Any) -> None:
        engine = FakeEngine()
        engine.queue_capacity = 3
        server = make_server(ServerArgs(), engine)
        url = f"{server.url}/v1/completions"
        assert httpx.post(url, json={"prompt": ["x"] * 3}).status_code == 200
        error = httpx.post(url, json={"prompt": ["x"] * 4})
        assert error.status_code == 400  # waiting would not help
        assert error.json()["error"]["param"] == "prompt"

    def test_retry_after_follows_the_queue(self, make_server: Any) -> None:
        server = make_server(ServerArgs())
        admission = server.server.config.app.state.context.admission
        assert admission.retry_after() == 2  # nothing is known
        for _ in range(8):
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert admission.retry_after() == 1
        admission.preparing = 10**6
        assert admission.retry_after() == 60
        admission.preparing = 0


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (QueueFullError("full"), 429, "queue_full", True),
        (EngineDeadError("gone"), 503, "engine_dead", False),
        (EngineShutDownError("down"), 503, "draining", False),
    ],
)
def test_engine_states_have_codes(error: Exception, status: int, code: str, retry: bool) -> None:
    answer = as_api_error(error)
    assert (answer.status, answer.code, answer.retry_after is not None) == (status, code, retry)


def test_wrong_methods_name_the_right_ones(client: httpx.Client) -> None:
    for method, path, allowed in (("GET", "/v1/completions", "POST"), ("DELETE", "/health", "GET")):
        response = client.request(method, path)
        assert response.status_code == 405
        assert allowed in response.headers["allow"]
        assert response.json()["error"]["code"] == "method_not_allowed"


def test_statuses_are_counted_by_route_not_by_path(client: httpx.Client) -> None:
    def count(endpoint: str, status: str) -> float:
        return metric(client, "inferx:http_responses_total", endpoint=endpoint, status=status)

    names = [("/v1/completions", "200"), ("/v1/completions", "400"), ("other", "404")]
    names.append(("/v1/models/{name:path}", "404"))
    before = [count(*name) for name in names]
    client.post("/v1/completions", json={"prompt": "x"})
    client.post("/v1/completions", json={"prompt": "x", "n": 0})
    for i in range(3):
        client.get(f"/nothing/{i}")
        client.get(f"/v1/models/nothing-{i}")
    assert [count(*name) for name in names] == [before[0] + 1, before[1] + 1, before[2] + 3, before[3] + 3]
    text = client.get("/metrics").text
    assert "nothing-1" not in text
    assert "/nothing/1" not in text


class TestUnknownFields:
    @pytest.fixture(autouse=True)
    def _none_so_far(self) -> None:
        unknown_fields.counts.clear()

    def test_ignored_counted_and_logged_once(
        self, client: httpx.Client, complete: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = metric(client, "inferx:unknown_request_fields_total", field="mystery")
        with caplog.at_level(logging.WARNING, "inferx.server"):
            for stream in (False, True, False):
                complete(mystery=1, stream=stream, user="me", metadata={"a": "b"}, store=False)
        assert metric(client, "inferx:unknown_request_fields_total", field="mystery") == before + 3
        logged = [r.getMessage() for r in caplog.records if "mystery" in r.getMessage()]
        assert len(logged) == (before == 0)
        assert not any("metadata" in r.getMessage() for r in caplog.records)

    def test_unsupported_fields_are_not_unknown_ones(self, complete: Any) -> None:
        complete(lora_request=None, use_beam_search=False)
        assert complete(expect=400, vllm_xargs={"a": 1}, mystery=1)["error"]["param"] == "vllm_xargs"
        assert set(unknown_fields.counts) == {"mystery"}

    def test_names_are_bounded_and_printable(self, client: httpx.Client, complete: Any) -> None:
        evil = 'x"}\n# HELP injected\ninjected_total 1\n\x1b[31m' + "y" * 1000
        for start in range(0, 200, 50):
            complete(**{f"unknown_{i}": 1 for i in range(start, start + 50)}, **{evil: 1})
        assert len(unknown_fields.counts) <= MAX_NAMES + 1
        assert unknown_fields.counts[OTHERS] >= 100
        text = client.get("/metrics").text
        assert not any(line.startswith("injected") for line in text.splitlines())
        assert "\x1b" not in text
        assert all(len(name) < 60 and name.isprintable() for name in unknown_fields.counts)


class TestCrossOrigin:
    ASK: ClassVar = {"origin": "https://app.example", "access-control-request-method": "POST"}

    def test_off_by_default(self, client: httpx.Client) -> None:
        asked = client.options("/v1/completions", headers=self.ASK)
        assert asked.status_code == 405
        answer = client.get("/v1/models", headers={"origin": "https://app.example"})
        for response in (asked, answer):
            assert not any(name.startswith("access-control") for name in response.headers)

    def test_allowed_origins(self, make_server: Any) -> None:
        server = make_server(ServerArgs(allowed_origins=("https://app.example",), api_keys=("k",)))
        asked = httpx.options(f"{server.url}/v1/completions", headers=self.ASK)
        assert asked.status_code == 200  # a browser asks without the key
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        refused = httpx.get(f"{server.url}/v1/models", headers={"origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        other = httpx.get(
            f"{server.url}/v1/models", headers={"origin": "https://evil.example", "x-api-key": "k"}
        )
        assert "access-control-allow-origin" not in other.headers


class TestDescription:
    @pytest.fixture
    def document(self, client: httpx.Client) -> dict[str, Any]:
        return client.get("/openapi.json").json()

    def test_references_resolve_and_schemas_are_schemas(self, document: dict[str, Any]) -> None:
        schemas = document["components"]["schemas"]
        for name in re.findall(r"'\$ref': '([^']+)'", str(document)):
            assert name.removeprefix("#/components/schemas/") in schemas, name
        assert "$defs" not in str(document)
        for schema in schemas.values():
            assert jsonschema_rs.meta.is_valid(schema)
        identifiers = [op["operationId"] for path in document["paths"].values() for op in path.values()]
        assert len(identifiers) == len(set(identifiers))
        assert document["info"]["version"] == inferx.__version__

    def test_every_operation_names_its_errors(self, document: dict[str, Any]) -> None:
        for path, operations in document["paths"].items():
            for operation in operations.values():
                statuses = {int(s) for s in operation["responses"]}
                assert {400, 401, 405, 431, 503} <= statuses, path
                if "requestBody" in operation:
                    assert {404, 413, 415, 429, 500} <= statuses, path
                assert 422 not in statuses
                assert {s for s in statuses if s >= 400} <= STATUS_TEXTS.keys()

    def test_keys_are_described_where_they_are_asked_for(
        self, make_server: Any, document: dict[str, Any]
    ) -> None:
        assert "security" not in document
        server = make_server(ServerArgs(api_keys=("k",)))
        keyed = httpx.get(f"{server.url}/openapi.json", headers={"x-api-key": "k"}).json()
        assert {next(iter(s)) for s in keyed["security"]} == {"bearer", "x-api-key"}
        assert keyed["paths"]["/health"]["get"]["security"] == []

    def test_answers_fit_their_description(self, client: httpx.Client, document: dict[str, Any]) -> None:
        asks: list[tuple[str, str, Any]] = [
            ("get", "/v1/models", None),
            ("get", "/health", None),
            ("get", "/version", None),
            ("post", "/tokenize", {"prompt": "x", "return_token_strs": True}),
            ("post", "/tokenize", ROUTES_WITH_PROMPTS["/v1/chat/completions"]),
            ("post", "/detokenize", {"tokens": [5]}),
            ("post", "/v1/completions", {"prompt": "x", "n": 2, "logprobs": 2, "echo": True}),
            ("post", "/v1/completions", {"prompt": "x", "return_token_ids": True, "prompt_logprobs": 1}),
            ("post", "/v1/completions", {"prompt": "x", "n": 0}),
            ("post", "/v1/completions", {"prompt": "x", "model": "y"}),
            ("post", "/v1/chat/completions", ROUTES_WITH_PROMPTS["/v1/chat/completions"]),
            ("post", "/v1/chat/completions", {"messages": []}),
        ]
        options = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "n": 2}
        asks.append(("post", "/v1/chat/completions", ROUTES_WITH_PROMPTS["/v1/chat/completions"] | options))
        for method, path, body in asks:
            response = client.request(method, path, json=body)
            described = document["paths"][path][method]["responses"][str(response.status_code)]
            validate(response.json(), described["content"]["application/json"]["schema"], document)

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    def test_events_fit_their_description(
        self, client: httpx.Client, document: dict[str, Any], path: str
    ) -> None:
        options = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "n": 2,
        }
        content = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
        events = sse(client.post(path, json=ROUTES_WITH_PROMPTS[path] | options).text)
        assert len(events) > 4
        for event in events:
            validate(event, content["x-event-schema"], document)


def validate(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> None:
    jsonschema_rs.validate({**schema, "components": document["components"]}, value)


def test_every_error_code_is_documented() -> None:
    root = Path(inferx.__file__).parent
    sources = [*(root / "server").rglob("*.py")]
    # Also where the code is not a keyword's value: of lines of batches, and where one of two is chosen.
    pattern = r'\bcode="([a-z_]+)"|\b_error\("([a-z_]+)"|"([a-z_]+_not_found|invalid_(?:url|method|line))"'
    found = {c for source in sources for groups in re.findall(pattern, source.read_text()) for c in groups}
    codes = found - {""}
    assert {"response_not_found", "duplicate_custom_id", "invalid_url", "queue_full"} <= codes
    assert len(codes) > 20
    documented = set(
        re.findall(r"`([a-z_]+)`", (Path(__file__).parents[2] / "docs" / "errors.md").read_text())
    )
    assert codes <= documented, codes - documented
