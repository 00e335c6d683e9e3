"""What every endpoint needs: the engine, options, metrics, and the model's names."""

from __future__ import annotations

import time
import uuid
from typing import Any, TypeVar, cast

from starlette.requests import Request

from inferx.server.admission import Admission
from inferx.server.answers import AnswerFormats
from inferx.server.args import ServerArgs
from inferx.server.engine_api import AsyncEngine
from inferx.server.errors import ApiError, shorten
from inferx.server.lifecycle import Lifecycle
from inferx.server.limits import check_content_type, read_body
from inferx.server.logprobs import TokenNames
from inferx.server.metrics import ServerMetrics
from inferx.server.protocol import parse_json
from inferx.server.sampling import sampling_defaults
from inferx.server.text_pool import TextPool

Part = TypeVar("Part")


class ServerContext:
    """Built once per application, reached from requests through ``app.state``."""

    def __init__(self, engine: AsyncEngine, args: ServerArgs) -> None:
        self.engine = engine
        self.args = args
        self.model_names = args.served_model_names or (engine.model_name,)
        self.text = TextPool(engine.tokenizer, engine.max_model_len, args.text_timeout)
        self.names = TokenNames(engine.tokenizer)
        self.formats = AnswerFormats(engine.tokenizer, args)
        self.lifecycle = Lifecycle()
        self.admission = Admission(engine)
        self.metrics = ServerMetrics(engine, self.model_names[0])
        self.metrics.on_request_end = self.admission.ended
        self.metrics.gauge(
            "inferx:http_requests_active", "Requests being answered.", lambda: self.lifecycle.active
        )
        self.metrics.gauge(
            "inferx:requests_preparing",
            "Requests being tokenised, on their way to the engine.",
            lambda: self.admission.preparing,
        )
        self.metrics.gauge(
            "inferx:stuck_text_threads",
            "Threads that go on with text that took too long.",
            lambda: self.text.num_stuck,
        )
        config = engine.generation_config if args.generation_config == "auto" else {}
        self.sampling_defaults = sampling_defaults(config)
        self.started = int(time.time())
        self._parts: dict[type, Any] = {}

    def part(self, kind: type[Part]) -> Part:
        """The server's one object of that kind, made when it is first asked for (a store, say)."""
        if kind not in self._parts:
            self._parts[kind] = kind()
        return cast(Part, self._parts[kind])

    def check_model(self, name: str | None) -> str:
        """The name to answer with; 404 for a model that is not served.  A name is a key, never a path."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            raise ApiError(
                404, f"the model {shorten(name)} does not exist", param="model", code="model_not_found"
            )
        return name

    async def read_json(self, request: Request) -> dict[str, Any]:
        check_content_type(request)
        body = await read_body(request, self.args.max_body_bytes)
        return parse_json(body)  # the parser holds the GIL: a thread would not help


def context_of(request: Request) -> ServerContext:
    return cast(ServerContext, request.app.state.context)


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"
