"""Options that several commands share, declared once.  Names are vLLM's flags."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from inferx.cli.vllm_flags import translated
from inferx.engine.args import (
    ACTIVATIONS,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_MODEL,
    KV_CACHE_DTYPES,
    WEIGHT_DTYPES,
    EngineArgs,
)
from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams

MODEL_HELP = "A directory, a .gguf file, a hub id, or smollm2-135m-instruct."
ENGINE_PANEL = "Engine"
SAMPLING_PANEL = "Sampling"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str, option: str) -> int:
    """``4GiB``, ``512M`` or plain bytes, as bytes; InvalidRequestError otherwise."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise InvalidRequestError(
            f"{option}: expected a size such as 4GiB, 512MiB or bytes, got {text[:40]!r}", option
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _engine(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=ENGINE_PANEL)


def _sampling(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=SAMPLING_PANEL)


def _by_device(defaults: dict[str, int]) -> str:
    return f"{defaults['cpu']} on the CPU, {defaults['cuda']} on a GPU"


def _engine_options(
    device: Annotated[
        str, _engine("--device", help="auto (a GPU when there is one), cpu, cuda or cuda:N.")
    ] = "auto",
    dtype: Annotated[
        str, _engine("--dtype", help=f"Weights, on a GPU activations too: {', '.join(WEIGHT_DTYPES)}.")
    ] = "auto",
    activations: Annotated[
        str,
        _engine("--activations", help=f"Of quantised weights, on the CPU: {', '.join(ACTIVATIONS)} (int8)."),
    ] = "auto",
    kv_cache_dtype: Annotated[
        str, _engine("--kv-cache-dtype", help=f"KV cache: {', '.join(KV_CACHE_DTYPES)}.")
    ] = "auto",
    max_model_len: Annotated[
        int | None, _engine("--max-model-len", help="Context limit, prompt plus output, in tokens.")
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        _engine("--max-num-seqs", help=f"Requests that run at once; {_by_device(DEFAULT_MAX_NUM_SEQS)}."),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        _engine(
            "--max-num-batched-tokens",
            help=f"Token budget of one step; {_by_device(DEFAULT_MAX_NUM_BATCHED_TOKENS)}.",
        ),
    ] = None,
    block_size: Annotated[
        int, _engine("--block-size", help="Tokens per KV block, a multiple of 8.")
    ] = EngineArgs().block_size,
    num_blocks: Annotated[
        int | None,
        _engine("--num-gpu-blocks-override", "--num-blocks", help="KV blocks, whatever the memory."),
    ] = None,
    kv_cache_memory: Annotated[
        str | None, _engine("--kv-cache-memory", help="Size of the KV cache, for instance 2GiB.")
    ] = None,
    kv_cache_memory_bytes: Annotated[str | None, typer.Option("--kv-cache-memory-bytes", hidden=True)] = None,
    gpu_memory_utilization: Annotated[
        float, _engine("--gpu-memory-utilization", help="Share of a GPU's memory to take, up to 1.")
    ] = EngineArgs().gpu_memory_utilization,
    enforce_eager: Annotated[bool, _engine("--enforce-eager", help="No CUDA graphs.")] = False,
    enable_prefix_caching: Annotated[
        bool,
        _engine("--enable-prefix-caching/--no-enable-prefix-caching", help="Reuse equal prefixes."),
    ] = True,
    scheduling_policy: Annotated[
        str, _engine("--scheduling-policy", help="fcfs, or priority (then arrival).")
    ] = EngineArgs().scheduling_policy,
    long_prefill_token_threshold: Annotated[
        int, _engine("--long-prefill-token-threshold", help="Most prefill tokens of one request per step.")
    ] = 0,
    background_tokens: Annotated[
        int | None,
        _engine("--background-tokens", help="Most tokens per step of batches beside interactive requests."),
    ] = None,
    background_chunk: Annotated[
        int | None, _engine("--background-chunk", help="Most prompt tokens per step of batches alone.")
    ] = None,
    seed: Annotated[int | None, _engine("--engine-seed", help="Seed of requests without one.")] = None,
    num_threads: Annotated[int | None, _engine("--threads", help="Threads of the CPU kernels.")] = None,
) -> None:
    """Only its signature is used: see ``takes``."""


def _sampling_options(
    max_tokens: Annotated[
        int | None, _sampling("--max-tokens", "-n", help="Most tokens to generate.")
    ] = None,
    temperature: Annotated[float | None, _sampling("--temperature", "-t", help="0 is greedy.")] = None,
    top_p: Annotated[float | None, _sampling("--top-p", help="Nucleus: (0, 1].")] = None,
    top_k: Annotated[int | None, _sampling("--top-k", help="Likeliest tokens only; 0 is all.")] = None,
    min_p: Annotated[float | None, _sampling("--min-p", help="Least share of the best probability.")] = None,
    repetition_penalty: Annotated[
        float | None, _sampling("--repetition-penalty", help="Above 1 discourages repeats.")
    ] = None,
    seed: Annotated[int | None, _sampling("--seed", help="The same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, _sampling("--stop", help="Text to stop at; may be repeated.")] = None,
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", help="Go on after end tokens.")] = False,
    generation_config: Annotated[
        str, _sampling("--generation-config", help="auto: the model's defaults; none: plain sampling.")
    ] = "auto",
) -> None:
    """Only its signature is used: see ``takes``."""


def _make_engine_args(values: dict[str, Any]) -> EngineArgs:
    memory, other = values.pop("kv_cache_memory"), values.pop("kv_cache_memory_bytes")
    if memory is None:
        memory = other  # vLLM's name
    values["dtype"] = translated("--dtype", values["dtype"])
    args = EngineArgs(
        kv_cache_memory_bytes=None if memory is None else parse_bytes(memory, "kv_cache_memory"), **values
    )
    args.validate()
    return args


class SamplingOptions:
    """What the user set; the model's defaults fill the rest once it is loaded."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.generation_config = check_generation_config(values.pop("generation_config"))
        self.values = {name: value for name, value in values.items() if value is not None}
        self.params(SamplingParams()).validate()  # complain before a model is loaded

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """The model's ``defaults`` under the user's values."""
        base = SamplingParams() if self.generation_config == "none" else defaults
        fields = {name: getattr(base, name) for name in SamplingParams.__struct_fields__}
        return SamplingParams(**{**fields, "max_tokens": None, **self.values})


def check_generation_config(value: str) -> Any:
    value = translated("--generation-config", value)
    if value not in ("auto", "none"):
        raise InvalidRequestError(f"--generation-config must be auto or none, got {value!r}")
    return value


def takes_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command gets ``engine_args: EngineArgs`` (without a model) from the engine's flags."""
    return _takes(command, _engine_options, "engine_args", _make_engine_args)


def takes_sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command gets ``sampling: SamplingOptions`` from the sampling flags."""
    return _takes(command, _sampling_options, "sampling", SamplingOptions)


def _takes(
    command: Callable[..., None],
    options: Callable[..., None],
    name: str,
    build: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Replace the command's parameter ``name`` by the parameters of ``options``.

    typer reads a function's signature, so the declarations can be shared by joining signatures.
    """
    own = inspect.signature(command, eval_str=True).parameters
    shared = inspect.signature(options, eval_str=True).parameters
    # Two groups may use one Python name for different flags: prefix it where it is taken.
    renamed = {key if key not in own else f"{name}_{key}": key for key in shared}

    def wrapper(**kwargs: Any) -> None:
        values = {original: kwargs.pop(key) for key, original in renamed.items()}
        kwargs[name] = build(values)
        command(**kwargs)

    parameters = [p for p in own.values() if p.name != name]
    parameters += [shared[original].replace(name=key) for key, original in renamed.items()]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


__all__ = ["DEFAULT_MODEL", "MODEL_HELP", "SamplingOptions", "takes_engine_options", "takes_sampling_options"]
