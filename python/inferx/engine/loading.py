"""From EngineArgs to a loaded model: checks and the memory plan first, then the weights."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from inferx import ops
from inferx.engine.args import EngineArgs
from inferx.engine.config import SchedulerConfig
from inferx.engine.cuda_graphs import CudaGraphBackend
from inferx.engine.device import Device, kv_cache_dtype, placement, resolve_device
from inferx.engine.memory import MemoryPlan, resolve_max_model_len, return_free_memory
from inferx.engine.memory_planner import MemoryPlanner
from inferx.engine.runner import ModelRunner, make_runner
from inferx.engine.wire import EngineInfo
from inferx.errors import InferxError, LoadError, MemoryBudgetError
from inferx.layers.placement import Placement
from inferx.loader import Checkpoint, Tokenizer, load_tokenizer, open_checkpoint
from inferx.models import build_model
from inferx.models.decoder import Decoder

logger = logging.getLogger("inferx.engine")


@dataclass(frozen=True)
class LoadedModel:
    """Everything the engine core is built from."""

    checkpoint: Checkpoint
    model: Decoder
    plan: MemoryPlan
    scheduler_config: SchedulerConfig
    tokenizer: Tokenizer
    info: EngineInfo
    device: Device
    kv_dtype: torch.dtype
    graph_bytes: int  # that CUDA graphs may take; 0 for none

    def make_runner(self) -> ModelRunner:
        """The runner, with its KV cache."""
        limits = self.scheduler_config
        backend = None
        with self.device.running():
            if self.graph_bytes:
                backend = CudaGraphBackend(self.device.torch_device, self.graph_bytes)
            return make_runner(
                self.model,
                self.device,
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                kv_dtype=self.kv_dtype,
                tokenizer_vocab_size=self.tokenizer.vocab_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=limits.max_model_len,
                graph_backend=backend,
            )


def load_model(args: EngineArgs, *, show_progress: bool = False) -> LoadedModel:
    """Open, plan, refuse or load.

    show_progress: print the memory table to standard error, and a progress bar where that is a terminal.
    Raises LoadError, MemoryBudgetError (before any weight is read) or InvalidRequestError.
    """
    args.validate()
    set_threads(args.num_threads)
    device = resolve_device(args.device)
    with _no_collector():
        checkpoint = open_checkpoint(args.model)
    try:
        with device.running(), _no_collector():
            loaded = _load(checkpoint, device, args, show_progress=show_progress)
            checkpoint.release()
            return_free_memory()
            return loaded
    except InferxError:
        raise
    except torch.OutOfMemoryError as error:
        raise MemoryBudgetError(
            f"{checkpoint.path}: the GPU has run out of memory while the model was loaded; lower "
            f"max_num_batched_tokens or max_num_seqs, or take a smaller model ({error})"
        ) from error
    except (ArithmeticError, TypeError, ValueError) as error:
        # Absurd values of a configuration (a factor of 1e308, a context of 1) surface where they are used.
        message = f"{checkpoint.path}: the configuration cannot be used: {type(error).__name__}: {error}"
        raise LoadError(message) from error


@contextmanager
def _no_collector() -> Iterator[None]:
    """Vocabularies are hundreds of thousands of new objects and no garbage: not for Python's collector."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(checkpoint: Checkpoint, device: Device, args: EngineArgs, *, show_progress: bool) -> LoadedModel:
    started = time.monotonic()
    config = checkpoint.config
    quantised = any(info.quantised for info in checkpoint.tensors.values())
    where = placement(device, config, args.dtype, args.activations, quantised=quantised)
    latent = config.mla is not None
    kv_dtype = kv_cache_dtype(device, args.kv_cache_dtype, where.dtype, latent=latent, int8=where.int8)
    max_num_seqs, max_num_batched_tokens = args.limits(device.kind)
    background_tokens, background_chunk = args.background_limits(device.kind)
    planner = MemoryPlanner(checkpoint, args, device, where, kv_dtype)
    wanted_len = resolve_max_model_len(config, args.max_model_len)
    plan = planner.before_loading(wanted_len)
    # What is announced must be what can be had: no request could ever use more than the whole pool.
    max_model_len = min(wanted_len, plan.kv_tokens)
    console = Console(stderr=True, highlight=False)
    if device.kind != "cuda":
        _show(plan, checkpoint, wanted_len, console if show_progress else None)
    model = _read_weights(
        checkpoint,
        args.dtype,
        where,
        console,
        float8_cache=kv_dtype == torch.float8_e4m3fn,
        show=show_progress and sys.stderr.isatty(),
    )
    if not device.is_cpu:
        model.prepare(max_model_len)
    if device.kind == "cuda":
        plan = planner.after_loading(model, max_model_len)
        max_model_len = min(max_model_len, plan.kv_tokens)
        _show(plan, checkpoint, wanted_len, console if show_progress else None)
    scheduler_config = SchedulerConfig(
        num_blocks=plan.num_blocks,
        max_model_len=max_model_len,
        block_size=args.block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enable_prefix_caching=args.enable_prefix_caching,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        max_waiting=args.max_waiting,
        background_tokens=background_tokens,
        background_chunk=background_chunk,
        policy=args.scheduling_policy,  # type: ignore[arg-type]  # checked by validate
    )
    info = EngineInfo(
        max_model_len=max_model_len,
        vocab_size=model.config.vocab_size,
        block_size=args.block_size,
        num_blocks=plan.num_blocks,
        architecture=model.config.architecture,
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=plan.kv_bytes_per_token,
        max_num_seqs=max_num_seqs,
        total_parameters=model.parameters.total,
        active_parameters=model.parameters.active,
        load_seconds=time.monotonic() - started,
    )
    return LoadedModel(
        checkpoint=checkpoint,
        model=model,
        plan=plan,
        scheduler_config=scheduler_config,
        tokenizer=load_tokenizer(checkpoint),
        info=info,
        device=device,
        kv_dtype=kv_dtype,
        graph_bytes=planner.graph_bytes,
    )


def _show(plan: MemoryPlan, checkpoint: Checkpoint, wanted_len: int, console: Console | None) -> None:
    """The memory table, on the console or in the log."""
    text = f"{checkpoint.path.name}\n{plan.table()}"
    if plan.kv_tokens < wanted_len:
        text += f"\n  the context is lowered from {wanted_len:,} tokens to what the KV cache holds"
    if console is not None:
        console.print(text, soft_wrap=True, markup=False)
    else:
        logger.info("memory plan of %s", text)


def _read_weights(
    checkpoint: Checkpoint,
    dtype: str,
    where: Placement,
    console: Console,
    *,
    float8_cache: bool,
    show: bool,
) -> Decoder:
    columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not show, transient=True) as bar:
        task = bar.add_task("weights", total=checkpoint.weight_bytes)
        return build_model(
            checkpoint,
            dtype,
            progress=lambda done: bar.update(task, completed=done),
            placement=where,
            float8_cache=float8_cache,
        )


def set_threads(requested: int | None) -> None:
    """The same number of threads for our kernels and torch's: they share one OpenMP runtime."""
    count = requested
    if count is None:
        # What OpenMP made of the variable, which may be a list, or nonsense.
        count = ops.get_num_threads() if os.environ.get("OMP_NUM_THREADS") else _physical_cores()
    ops.set_num_threads(count)
    torch.set_num_threads(count)


def _physical_cores() -> int:
    """Physical cores this process may run on; hyper-threads only fight over the vector units."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return len(allowed)
    return max(1, len(cores))
