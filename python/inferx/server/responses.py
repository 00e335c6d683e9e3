"""JSON responses."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")
