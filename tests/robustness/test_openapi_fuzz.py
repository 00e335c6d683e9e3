"""schemathesis over the server's own OpenAPI document: requests made from the schemas, and against them.

No 5xx, only the status codes and content types that are documented, bodies of the documented shape.  Over
the scripted engine; the number of requests is bounded and their choice repeatable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fake_engine import FakeEngine
from fake_server import ThreadServer
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import FailureGroup

from inferx.server.app import ROUTES
from inferx.server.args import ServerArgs

EXAMPLES = 25  # of each operation

load_all_checks()
WANTED = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
    ]
)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadServer]:
    server = ThreadServer(FakeEngine(), ServerArgs(max_body_bytes=200_000))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def api(server: ThreadServer) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


OPERATIONS = [(route.method, route.openapi_path) for route in ROUTES]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[" ".join(o) for o in OPERATIONS])
def test_requests_from_the_schema(api: Any, server: ThreadServer, method: str, path: str) -> None:
    @given(case=api[path][method].as_strategy())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        response = case.call(base_url=server.url, timeout=20)
        case.validate_response(response, checks=WANTED)

    ask()


@pytest.mark.parametrize("change", ["status", "body", "type"])
def test_the_checks_see(api: Any, server: ThreadServer, change: str) -> None:
    """An answer that is not as documented is a failure, or the test above shows nothing."""
    case = api["/v1/models"]["GET"].Case()
    case.validate_response(case.call(base_url=server.url), checks=WANTED)
    response = case.call(base_url=server.url)
    if change == "status":
        response.status_code = 500
    elif change == "type":
        response.headers["content-type"] = ["text/html"]
    else:
        response.content = b'{"object": 5}'
    with pytest.raises(FailureGroup):
        case.validate_response(response, checks=WANTED)


def test_after_it_all(server: ThreadServer) -> None:
    """Last: nothing of those requests is left."""
    assert not server.engine.running
    assert not server.engine.waiting
