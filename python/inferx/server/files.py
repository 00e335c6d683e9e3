"""``/v1/files``: the input of batches and what comes out of them.  A file's id is a key, never a path."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, BinaryIO

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from inferx.server import limits_table as limits
from inferx.server.batch.service import BatchService, batch_service
from inferx.server.batch.store import StoredFile, new_file_id
from inferx.server.context import ServerContext
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.responses import json_response

PURPOSES = ("batch", "batch_output")
# Fields beside the file, and their bytes: purpose, and what SDKs add.
_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 64 << 10
_ODD = re.compile(r"[\x00-\x1f\x7f/\\]")


async def create_file(context: ServerContext, request: Request) -> Response:
    """Take an upload: multipart/form-data with ``file`` and ``purpose``."""
    service = batch_service(context)
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise ApiError(
            415,
            f"Content-Type must be multipart/form-data, got {shorten(kind)}",
            code="unsupported_media_type",
        )
    limits.FILES.check(service.store.count_files("batch") + 1, "file")
    parser = MultiPartParser(
        request.headers,
        _bounded(request),
        max_files=1,
        max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        raise bad_request(f"file: the form could not be read: {shorten(message, 200)}", "file") from error
    try:
        return json_response(_public(await _keep(service, form)))
    finally:
        await form.close()


async def _bounded(request: Request) -> AsyncGenerator[bytes, None]:
    size = 0
    most = limits.FILE_BYTES.most + _MAX_FIELDS * _MAX_FIELD_BYTES
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            error = limits.FILE_BYTES.error(size, "file")
            error.close = True
            raise error
        yield chunk


async def _keep(service: BatchService, form: Any) -> StoredFile:
    purpose, file = form.get("purpose"), form.get("file")
    if purpose != "batch":
        raise bad_request(f"purpose must be batch, got {shorten(purpose)}", "purpose")
    if file is None or isinstance(file, str):
        raise bad_request("file must be an uploaded file", "file")
    limits.FILE_BYTES.check(file.size or 0, "file")
    limits.FILES_BYTES.check(service.store.count_bytes() + (file.size or 0), "file")
    # It is only shown; what a client calls its file need not be a name.
    name = _ODD.sub("_", file.filename or "") or "file.jsonl"
    limits.FILE_NAME_CHARS.check(len(name), "file")
    file_id = new_file_id()
    path = service.store.path(file_id)
    try:
        await asyncio.to_thread(_copy, file.file, path)
        return service.store.add_file(file_id, name, purpose)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _copy(source: BinaryIO, path: Path) -> None:
    source.seek(0)
    with path.open("xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())


async def list_files(context: ServerContext, request: Request) -> Response:
    service = batch_service(context)
    query = request.query_params
    purpose = query.get("purpose")
    if purpose is not None and purpose not in PURPOSES:
        raise bad_request(f"purpose must be {' or '.join(PURPOSES)}, got {shorten(purpose)}", "purpose")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request(f"order must be asc or desc, got {shorten(order)}", "order")
    limit = page_size(request, default=10_000, most=10_000)
    after = known_after(request, service.store.file)
    found = service.store.list_files(limit + 1, after, purpose, order == "asc")
    return json_response(page([_public(file) for file in found], limit))


async def get_file(context: ServerContext, request: Request) -> Response:
    return json_response(_public(_file(batch_service(context), request)))


async def get_content(context: ServerContext, request: Request) -> Response:
    service = batch_service(context)
    file = _file(service, request)
    return FileResponse(service.store.path(file.id), media_type="application/jsonl")


async def delete_file(context: ServerContext, request: Request) -> Response:
    service = batch_service(context)
    file = _file(service, request)
    batch = service.uses(file.id)
    if batch is not None:
        raise ApiError(409, f"the file is the input of {batch.id}, which is not finished", code="file_in_use")
    service.store.delete_file(file.id)
    return json_response({"id": file.id, "object": "file", "deleted": True})


def _file(service: BatchService, request: Request) -> StoredFile:
    file_id = request.path_params["file_id"]
    file = service.store.file(file_id)
    if file is None:
        raise ApiError(404, f"there is no file {shorten(file_id)}", param="file_id", code="file_not_found")
    return file


def _public(file: StoredFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in file.__struct_fields__}


# Lists, also of batches


def page_size(request: Request, *, default: int, most: int) -> int:
    """``limit`` of the query."""
    text = request.query_params.get("limit")
    if text is None:
        return default
    value = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if not 1 <= value <= most:
        raise bad_request(f"limit must be an integer from 1 to {most}, got {shorten(text)}", "limit")
    return value


def known_after(request: Request, find: Callable[[str], object | None]) -> str | None:
    """``after`` of the query, which must be there."""
    after: str | None = request.query_params.get("after")
    if after is not None and find(after) is None:
        raise bad_request(f"after must be the id of an entry of this list, got {shorten(after)}", "after")
    return after


def page(items: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A list as the API shows it; ``items`` has one more than the limit when there are more."""
    shown = items[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > limit,
    }
