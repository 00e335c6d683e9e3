"""``/v1/batches``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from inferx.server import files
from inferx.server import limits_table as limits
from inferx.server.batch.answer import URLS
from inferx.server.batch.service import BatchService, batch_service
from inferx.server.batch.store import Batch
from inferx.server.context import ServerContext
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.protocol import RequestModel, parse_request
from inferx.server.responses import json_response
from inferx.server.routes import Route, query_parameter


class BatchRequest(RequestModel):
    """``POST /v1/batches``."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


async def create_batch(context: ServerContext, request: Request) -> Response:
    service = batch_service(context)
    body = parse_request(BatchRequest, await context.read_json(request))
    if body.endpoint not in URLS:
        raise bad_request(f"endpoint must be {' or '.join(URLS)}, got {shorten(body.endpoint)}", "endpoint")
    if body.completion_window != "24h":
        raise bad_request(
            f"completion_window must be 24h, got {shorten(body.completion_window)}", "completion_window"
        )
    _check_metadata(body.metadata or {})
    file = service.store.file(body.input_file_id)
    if file is None or file.purpose != "batch":
        raise bad_request(
            f"input_file_id must be that of an uploaded file of purpose batch, got "
            f"{shorten(body.input_file_id)}",
            "input_file_id",
            "file_not_found",
        )
    return json_response(service.create(body.endpoint, file.id, body.metadata).as_dict())


def _check_metadata(metadata: dict[str, str]) -> None:
    limits.METADATA.check(len(metadata), "metadata")
    for key, value in metadata.items():
        limits.METADATA_KEY_CHARS.check(len(key), "metadata")
        limits.METADATA_VALUE_CHARS.check(len(value), "metadata")


async def list_batches(context: ServerContext, request: Request) -> Response:
    service = batch_service(context)
    limit = files.page_size(request, default=20, most=100)
    after = files.known_after(request, service.batch)
    found = service.list_batches(limit + 1, after)
    return json_response(files.page([batch.as_dict() for batch in found], limit))


async def get_batch(context: ServerContext, request: Request) -> Response:
    return json_response(_batch(batch_service(context), request).as_dict())


async def cancel_batch(context: ServerContext, request: Request) -> Response:
    service = batch_service(context)
    return json_response(service.cancel(_batch(service, request)).as_dict())


def _batch(service: BatchService, request: Request) -> Batch:
    batch_id = request.path_params["batch_id"]
    batch = service.batch(batch_id)
    if batch is None:
        raise ApiError(
            404, f"there is no batch {shorten(batch_id)}", param="batch_id", code="batch_not_found"
        )
    return batch


# What the answers look like


class FileObject(BaseModel):
    id: str
    object: Literal["file"]
    bytes: int = Field(ge=0)
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str
    status_details: str | None


class FileList(BaseModel):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"]
    deleted: bool


class BatchRequestCounts(BaseModel):
    total: int = Field(ge=0)
    completed: int = Field(ge=0)
    failed: int = Field(ge=0)


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


_UPLOAD = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["batch"]},
    },
}
_AFTER = query_parameter("after", {"type": "string"}, "The id that the list goes on behind.")


def _limit(most: int) -> dict[str, Any]:
    return query_parameter("limit", {"type": "integer", "minimum": 1, "maximum": most}, "Entries at most.")


BATCH_ROUTES = (
    Route(
        "POST",
        "/v1/files",
        files.create_file,
        "Upload the input of a batch.",
        body=_UPLOAD,
        body_type="multipart/form-data",
        response=FileObject,
        errors=(404, 429),
    ),
    Route(
        "GET",
        "/v1/files",
        files.list_files,
        "The files, the newest first.",
        response=FileList,
        parameters=(
            _AFTER,
            _limit(10_000),
            query_parameter("order", {"type": "string", "enum": ["asc", "desc"]}, "By time of creation."),
            query_parameter("purpose", {"type": "string", "enum": list(files.PURPOSES)}, "Only of these."),
        ),
        errors=(404,),
    ),
    Route("GET", "/v1/files/{file_id}", files.get_file, "A file.", response=FileObject, errors=(404,)),
    Route(
        "GET",
        "/v1/files/{file_id}/content",
        files.get_content,
        "The bytes of a file.",
        response={"type": "string", "format": "binary"},
        response_type="application/jsonl",
        errors=(404,),
    ),
    Route(
        "DELETE",
        "/v1/files/{file_id}",
        files.delete_file,
        "Delete a file that no unfinished batch reads.",
        response=FileDeleted,
        errors=(404, 409),
    ),
    Route(
        "POST",
        "/v1/batches",
        create_batch,
        "Run the requests of a file, behind everything interactive.",
        body=BatchRequest,
        response=BatchObject,
        errors=(404, 429),
    ),
    Route(
        "GET",
        "/v1/batches",
        list_batches,
        "The batches, the newest first.",
        response=BatchList,
        parameters=(_AFTER, _limit(100)),
        errors=(404,),
    ),
    Route("GET", "/v1/batches/{batch_id}", get_batch, "A batch.", response=BatchObject, errors=(404,)),
    Route(
        "POST",
        "/v1/batches/{batch_id}/cancel",
        cancel_batch,
        "Stop a batch; what is answered stays.",
        response=BatchObject,
        errors=(404, 409),
    ),
)
