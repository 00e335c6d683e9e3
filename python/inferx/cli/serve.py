"""``inferx serve``: the OpenAI-compatible server."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer

from inferx.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    check_generation_config,
    parse_bytes,
    takes_engine_options,
)
from inferx.engine.args import EngineArgs
from inferx.errors import InvalidRequestError
from inferx.pooling_params import DEFAULT_POOLING, POOLINGS
from inferx.server import limits_table as limits
from inferx.server.args import REASONING_PARSERS, TOOL_CALL_PARSERS, ServerArgs

SERVER_PANEL = "Server"
API_KEY_VARIABLE = "INFERX_API_KEY"


def _option(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=SERVER_PANEL)


@takes_engine_options
def serve(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEFAULT_MODEL,
    model_option: Annotated[str | None, typer.Option("--model", hidden=True)] = None,
    host: Annotated[str, _option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _option("--port", help="Port to listen on; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        _option("--served-model-name", help="Name in the API; may be repeated."),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        _option(
            "--api-key",
            help=f"Key that requests must carry; may be repeated. Safer in ${API_KEY_VARIABLE} (several with "
            "commas): other users of this machine see command lines.",
        ),
    ] = None,
    generation_config: Annotated[
        str, _option("--generation-config", help="Sampling defaults: auto (the model's) or none.")
    ] = "auto",
    pooling: Annotated[
        str, _option("--pooling", help=f"Of /v1/embeddings: {' or '.join(POOLINGS)}.")
    ] = DEFAULT_POOLING,
    batch_dir: Annotated[
        str | None, _option("--batch-dir", help="Where to keep files and batches; without it there are none.")
    ] = None,
    tool_call_parser: Annotated[
        str,
        _option(
            "--tool-call-parser",
            help="How the model writes calls: auto (see its chat template), none, hermes, llama3, mistral.",
        ),
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        _option(
            "--reasoning-parser",
            help="Reasoning told apart from the answer: auto (from the chat template), none or think.",
        ),
    ] = "auto",
    allowed_origins: Annotated[
        list[str] | None,
        _option("--allowed-origins", help="Origin of web pages that may call (CORS); may be repeated."),
    ] = None,
    max_waiting: Annotated[
        int, _option("--max-waiting", help="Requests that may wait beside --max-num-seqs; then 429.")
    ] = limits.WAITING.most,
    max_connections: Annotated[
        int, _option("--max-connections", help="Connections open at once.")
    ] = limits.CONNECTIONS.most,
    max_body_size: Annotated[
        str, _option("--max-body-size", help="Largest request body, for instance 16MiB.")
    ] = "16MiB",
    max_header_size: Annotated[
        str, _option("--max-header-size", help="Largest headers of a request, for instance 64KiB.")
    ] = "64KiB",
    header_timeout: Annotated[
        float, _option("--header-timeout", help="Seconds for a request's headers to come in.")
    ] = limits.HEADER_SECONDS.most,
    body_timeout: Annotated[
        float, _option("--body-timeout", help="Seconds for a body, beside one for each 16 KiB.")
    ] = limits.BODY_SECONDS.most,
    keep_alive_timeout: Annotated[
        float, _option("--keep-alive-timeout", help="Seconds between two requests of a connection.")
    ] = limits.KEEP_ALIVE_SECONDS.most,
    write_timeout: Annotated[
        float, _option("--write-timeout", help="Seconds for a client to read what is ready for it.")
    ] = limits.WRITE_SECONDS.most,
    text_timeout: Annotated[
        float, _option("--text-timeout", help="Seconds for tokenising or rendering one prompt.")
    ] = limits.TEXT_SECONDS.most,
    shutdown_timeout: Annotated[
        float, _option("--shutdown-timeout", help="Seconds running requests get after SIGTERM.")
    ] = ServerArgs.shutdown_timeout,
    access_log: Annotated[bool, _option("--access-log", help="Log every request.")] = False,
    seed: Annotated[int | None, _option("--seed", help="The same as --engine-seed (vLLM's name).")] = None,
    engine_args: EngineArgs = EngineArgs(),  # noqa: B008 (replaced by the flags)
) -> None:
    """Serve a model over HTTP: OpenAI's API under /v1, /metrics for Prometheus."""
    if not 0 <= port <= 65535:
        raise InvalidRequestError(f"--port must be from 0 to 65535, got {port}")
    if not 0 <= shutdown_timeout < float("inf"):
        raise InvalidRequestError(f"--shutdown-timeout must not be negative, got {shutdown_timeout}")
    _check_positive(
        max_connections=max_connections,
        header_timeout=header_timeout,
        body_timeout=body_timeout,
        keep_alive_timeout=keep_alive_timeout,
        write_timeout=write_timeout,
        text_timeout=text_timeout,
    )
    names = tuple(served_model_name or ())
    server_args = ServerArgs(
        host=host,
        port=port,
        served_model_names=names,
        generation_config=check_generation_config(generation_config),
        pooling=_pooling(pooling),
        batch_dir=batch_dir,
        tool_call_parser=_one_of("--tool-call-parser", tool_call_parser, TOOL_CALL_PARSERS),
        reasoning_parser=_one_of("--reasoning-parser", reasoning_parser, REASONING_PARSERS),
        api_keys=_api_keys(api_key or []),
        allowed_origins=tuple(allowed_origins or ()),
        max_body_bytes=parse_bytes(max_body_size, "max_body_size"),
        max_header_bytes=parse_bytes(max_header_size, "max_header_size"),
        max_connections=max_connections,
        header_timeout=header_timeout,
        body_timeout=body_timeout,
        keep_alive_timeout=keep_alive_timeout,
        write_timeout=write_timeout,
        text_timeout=text_timeout,
        shutdown_timeout=shutdown_timeout,
        access_log=access_log,
    )
    engine_args = msgspec.structs.replace(
        engine_args,
        model=model_option or model,
        served_model_name=names[0] if names else None,
        seed=engine_args.seed if seed is None else seed,
        max_waiting=max_waiting,
    )
    from inferx.server.serve import run_server

    run_server(engine_args, server_args, show_progress=True)


def _pooling(value: str) -> Any:
    if value not in POOLINGS:
        raise InvalidRequestError(f"--pooling must be {' or '.join(POOLINGS)}, got {value!r}")
    return value


def _check_positive(**options: float) -> None:
    for name, value in options.items():
        if not 0 < value < float("inf"):
            raise InvalidRequestError(f"--{name.replace('_', '-')} must be above 0, got {value}")


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise InvalidRequestError(f"{flag} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _api_keys(given: list[str]) -> tuple[str, ...]:
    """The flags' keys, else the variable's, which processes started from here do not inherit."""
    variable = os.environ.pop(API_KEY_VARIABLE, "")
    keys = given or [key for key in variable.split(",") if key.strip()]
    keys = [key.strip() for key in keys]
    if not all(keys) or (variable and not keys):
        raise InvalidRequestError("--api-key: a key must not be empty")
    return tuple(dict.fromkeys(keys))
