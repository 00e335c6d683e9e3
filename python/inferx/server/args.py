"""ServerArgs: what a user can set about the HTTP server.  Names follow vLLM's flags where it has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from inferx.pooling_params import DEFAULT_POOLING, Pooling
from inferx.server import limits_table as limits

ToolCallParser = Literal["auto", "none", "hermes", "llama3", "mistral"]
ReasoningParser = Literal["auto", "none", "think"]
TOOL_CALL_PARSERS: tuple[str, ...] = get_args(ToolCallParser)
REASONING_PARSERS: tuple[str, ...] = get_args(ReasoningParser)


@dataclass(frozen=True)
class ServerArgs:
    """served_model_names: every name a request may give as ``model``; empty = the engine's own name.
    generation_config: ``auto`` takes sampling defaults from the model's generation_config.json, ``none``
    takes the API's.  tool_call_parser, reasoning_parser: how the model writes calls and reasoning; ``auto``
    looks at its chat template, ``none`` leaves them in the text.  pooling: of /v1/embeddings, where a
    request does not say.  batch_dir: where files and batches are kept; none = no /v1/files and /v1/batches.
    api_keys: any of them admits a request; none = no key is asked for.
    allowed_origins: of web pages that may call (CORS); "*" is all of them, none = no page.
    max_...: see ``limits_table``; header and body are counted while reading, whatever the request says
    about itself.  ..._timeout: seconds, likewise.
    first_output_grace: seconds a streamed request may wait for its first token before the 200 is sent; an
    error inside that time is a real HTTP status.
    shutdown_timeout: seconds that running requests get to finish after SIGTERM: with what comes after it,
    less than the 30 that Kubernetes waits."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    generation_config: Literal["auto", "none"] = "auto"
    tool_call_parser: ToolCallParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    pooling: Pooling = DEFAULT_POOLING
    batch_dir: str | None = None
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = limits.BODY_BYTES.most
    max_header_bytes: int = limits.HEADER_BYTES.most
    max_connections: int = limits.CONNECTIONS.most
    header_timeout: float = limits.HEADER_SECONDS.most
    body_timeout: float = limits.BODY_SECONDS.most
    keep_alive_timeout: float = limits.KEEP_ALIVE_SECONDS.most
    write_timeout: float = limits.WRITE_SECONDS.most
    text_timeout: float = limits.TEXT_SECONDS.most
    first_output_grace: float = 10.0
    keep_alive_interval: float = 15.0
    shutdown_timeout: float = 20
    access_log: bool = False
