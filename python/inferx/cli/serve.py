"""``inferx serve``: the OpenAI-compatible server."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Mapping
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
from inferx.cli.vllm_flags import NO_EFFECT, translated
from inferx.engine.args import EngineArgs
from inferx.errors import InvalidRequestError
from inferx.pooling_params import DEFAULT_POOLING, POOLINGS
from inferx.server import limits_table as limits
from inferx.server.args import REASONING_PARSERS, TOOL_CALL_PARSERS, ServerArgs

SERVER_PANEL = "Server"
API_KEY_VARIABLE = "INFERX_API_KEY"
VLLM_API_KEY_VARIABLE = "VLLM_API_KEY"


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
    no_effect: Annotated[bool, typer.Option(*NO_EFFECT, hidden=True)] = False,
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
        allowed_origins=_origins(allowed_origins or []),
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
    for warning in key_warnings(host, server_args.api_keys, os.environ):
        print(f"inferx: warning: {warning}", file=sys.stderr, flush=True)
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
    value = translated(flag, value)
    if value not in allowed:
        raise InvalidRequestError(f"{flag} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _origins(given: list[str]) -> tuple[str, ...]:
    """The flag's values, each an origin or, as vLLM has it, a JSON list of them."""
    origins: list[str] = []
    for value in given:
        if not value.lstrip().startswith("["):
            origins.append(value)
            continue
        try:
            values = json.loads(value)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, list) or not all(isinstance(origin, str) for origin in values):
            raise InvalidRequestError(
                f"--allowed-origins takes an origin or a JSON list of them, got {value[:60]!r}"
            )
        origins += values
    return tuple(origins)


def key_warnings(host: str, keys: tuple[str, ...], environment: Mapping[str, str]) -> list[str]:
    """What a user may not have meant, when the server asks for no key."""
    if keys:
        return []
    found = []
    if environment.get(VLLM_API_KEY_VARIABLE):
        found.append(f"{VLLM_API_KEY_VARIABLE} is not read; the key of inferx is {API_KEY_VARIABLE}")
    if not _is_loopback(host):
        found.append(
            f"no key is asked for, and whoever reaches {host or 'any address of this machine'} can use the "
            f"server; {API_KEY_VARIABLE} sets one"
        )
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _api_keys(given: list[str]) -> tuple[str, ...]:
    """The flags' keys, else the variable's, which processes started from here do not inherit."""
    variable = os.environ.pop(API_KEY_VARIABLE, "")
    keys = given or [key for key in variable.split(",") if key.strip()]
    keys = [key.strip() for key in keys]
    if not all(keys) or (variable and not keys):
        raise InvalidRequestError("--api-key: a key must not be empty")
    return tuple(dict.fromkeys(keys))
