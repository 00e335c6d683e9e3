"""``/v1/embeddings``."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams
from inferx.server import limits_table as limits
from inferx.server.context import ServerContext, new_id
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.generation import Job, OutputStream
from inferx.server.prompts import check_token_ids, split_prompts
from inferx.server.protocol import RequestModel, parse_request
from inferx.server.responses import json_response
from inferx.server.streaming import until_disconnect
from inferx.server.unsupported_fields import UNSUPPORTED
from inferx.server.usage import UsageCounter

# Of the engine's request for an embedding; see engine.pooling.
_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)


class EmbeddingRequest(RequestModel):
    """``/v1/embeddings``.  Beyond OpenAI's fields: pooling, normalize, truncate_prompt_tokens (the last ones
    are kept; -1 for what fits), add_special_tokens, priority, cache_salt."""

    unsupported: ClassVar[Mapping[str, str]] = {**UNSUPPORTED, "messages": "; input takes texts or token ids"}

    input: Any = None  # str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31 - 1)
    cache_salt: Annotated[str, Field(min_length=1, max_length=limits.CACHE_SALT_CHARS.most)] | None = None


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int = Field(ge=0)
    embedding: list[float] | str  # base64: of float32, little-endian


class EmbeddingUsage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)


class EmbeddingResponse(BaseModel):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


async def create_embeddings(context: ServerContext, request: Request) -> Response:
    """One embedding for each prompt of ``input``, in its order."""
    arrival = time.monotonic()
    body = parse_request(EmbeddingRequest, await context.read_json(request))
    model = context.check_model(body.model)
    prompts = split_prompts(body.input, "input")
    with context.admission.preparing_requests(len(prompts)):
        jobs = await _make_jobs(context, body, prompts, arrival)
    outputs = OutputStream(context.engine, jobs, context.metrics)
    answer = await until_disconnect(request.receive, _answer(outputs, jobs, body))
    return json_response(
        {"id": jobs[0].request_id.rpartition("-")[0], "created": int(time.time()), "model": model} | answer
    )


async def _make_jobs(
    context: ServerContext, body: EmbeddingRequest, prompts: list[str | list[int]], arrival: float
) -> list[Job]:
    pooling = PoolingParams(
        pooling=body.pooling or context.args.pooling,
        dimensions=body.dimensions,
        normalize=body.normalize is not False,
    )
    pooling.validate(context.engine.hidden_size)
    most = _most_tokens(context, body)
    jobs = []
    response_id = new_id("embd")
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            prompt = await context.text.encode(prompt, body.add_special_tokens is not False, "input")
        if body.truncate_prompt_tokens is not None:
            prompt = prompt[-most:]
        _check(prompt, most)
        check_token_ids(prompt, context.engine.vocab_size, "input")
        jobs.append(
            Job(
                f"{response_id}-{number}",
                prompt,
                _ONE_TOKEN,
                priority=body.priority or 0,
                cache_salt=body.cache_salt,
                arrival_time=arrival,
                pooling=pooling,
            )
        )
    return jobs


def _most_tokens(context: ServerContext, body: EmbeddingRequest) -> int:
    """Tokens that one prompt may have."""
    context_length, wanted = context.engine.max_model_len, body.truncate_prompt_tokens
    if wanted is None or wanted == -1:
        return context_length
    if not 1 <= wanted <= context_length:
        raise bad_request(
            f"truncate_prompt_tokens must be -1 or from 1 to {context_length}, got {shorten(wanted)}",
            "truncate_prompt_tokens",
        )
    return wanted


def _check(ids: list[int], most: int) -> None:
    if not ids:
        raise bad_request("input: must have at least one token, got none", "input")
    if len(ids) > most:
        raise bad_request(
            f"the maximum context length is {most} tokens, but the input has {len(ids)}",
            "input",
            "context_length_exceeded",
        )


async def _answer(outputs: OutputStream, jobs: list[Job], body: EmbeddingRequest) -> dict[str, Any]:
    found: dict[int, bytes] = {}
    usage = UsageCounter([len(job.prompt_token_ids) for job in jobs])
    try:
        async for number, output in outputs:
            usage.add(number, 0, output.num_cached_tokens)
            if output.embedding is not None:
                found[number] = output.embedding
    finally:
        await outputs.aclose()
    if len(found) != len(jobs):
        raise ApiError(500, "the engine ended a request without an embedding", type="internal_server_error")
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(found[i], body.encoding_format)}
        for i in range(len(jobs))
    ]
    counts = usage.as_dict()
    return {
        "object": "list",
        "data": data,
        "usage": {name: counts[name] for name in ("prompt_tokens", "total_tokens", "prompt_tokens_details")},
    }


def _encoded(embedding: bytes, encoding_format: str | None) -> Any:
    if encoding_format == "base64":
        return base64.b64encode(embedding).decode("ascii")
    return np.frombuffer(embedding, "<f4").tolist()
