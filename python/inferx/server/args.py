"""ServerArgs: what a user can set about the HTTP server.  Names follow vLLM's flags where it has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20


@dataclass(frozen=True)
class ServerArgs:
    """served_model_names: every name a request may give as ``model``; empty = the engine's own name.
    generation_config: ``auto`` takes sampling defaults from the model's generation_config.json, ``none``
    takes the API's.  max_body_bytes and the header limits are counted while reading, whatever the
    request says about itself.  first_output_grace: seconds a streamed request may wait for its first
    token before the 200 is sent; an error inside that time is a real HTTP status.
    shutdown_timeout: seconds that running requests get to finish after SIGTERM."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    generation_config: Literal["auto", "none"] = "auto"
    api_key: str | None = None
    max_body_bytes: int = 16 * MIB
    max_header_bytes: int = 64 << 10
    max_headers: int = 128
    first_output_grace: float = 10.0
    keep_alive_interval: float = 15.0
    shutdown_timeout: int = 5
    access_log: bool = False
