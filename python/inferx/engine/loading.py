"""From EngineArgs to a loaded model: checks and the memory plan first, then the weights."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from inferx import ops
from inferx.engine.args import EngineArgs
from inferx.engine.config import SchedulerConfig
from inferx.engine.memory import MemoryPlan, packed_weight_bytes, plan_memory, resolve_max_model_len
from inferx.engine.wire import EngineInfo
from inferx.errors import InferxError, LoadError
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


def load_model(args: EngineArgs, *, show_progress: bool = False) -> LoadedModel:
    """Open, plan, refuse or load.

    show_progress: print the memory table to standard error, and a progress bar where that is a terminal.
    Raises LoadError, MemoryBudgetError (before any weight is read) or InvalidRequestError.
    """
    args.validate()
    set_threads(args.num_threads)
    checkpoint = open_checkpoint(args.model)
    try:
        return _load(checkpoint, args, show_progress=show_progress)
    except InferxError:
        raise
    except (ArithmeticError, TypeError, ValueError) as error:
        # Absurd values of a configuration (a factor of 1e308, a context of 1) surface where they are used.
        message = f"{checkpoint.path}: the configuration cannot be used: {type(error).__name__}: {error}"
        raise LoadError(message) from error


def _load(checkpoint: Checkpoint, args: EngineArgs, *, show_progress: bool) -> LoadedModel:
    started = time.monotonic()
    config = checkpoint.config
    max_model_len = resolve_max_model_len(config, args.max_model_len)
    plan = plan_memory(
        config,
        args,
        weight_bytes=packed_weight_bytes(checkpoint, args.dtype),
        max_model_len=max_model_len,
    )
    text = f"{checkpoint.path.name}\n{plan.table()}"
    if plan.kv_tokens < max_model_len:
        # What is announced must be what can be had: no request could ever use more than the whole pool.
        text += f"\n  the context is lowered from {max_model_len:,} tokens to what the KV cache holds"
        max_model_len = plan.kv_tokens
    console = Console(stderr=True, highlight=False)
    if show_progress:
        console.print(text, soft_wrap=True, markup=False)
    else:
        logger.info("memory plan of %s", text)
    scheduler_config = SchedulerConfig(
        num_blocks=plan.num_blocks,
        max_model_len=max_model_len,
        block_size=args.block_size,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        enable_prefix_caching=args.enable_prefix_caching,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        policy=args.scheduling_policy,  # type: ignore[arg-type]  # checked by validate
    )
    model = _read_weights(checkpoint, args.dtype, console, show=show_progress and sys.stderr.isatty())
    info = EngineInfo(
        max_model_len=max_model_len,
        vocab_size=model.config.vocab_size,
        block_size=args.block_size,
        num_blocks=plan.num_blocks,
        architecture=model.config.architecture,
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=plan.kv_bytes_per_token,
        max_num_seqs=args.max_num_seqs,
        load_seconds=time.monotonic() - started,
    )
    return LoadedModel(
        checkpoint=checkpoint,
        model=model,
        plan=plan,
        scheduler_config=scheduler_config,
        tokenizer=load_tokenizer(checkpoint),
        info=info,
    )


def _read_weights(checkpoint: Checkpoint, dtype: str, console: Console, *, show: bool) -> Decoder:
    columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not show, transient=True) as bar:
        task = bar.add_task("weights", total=checkpoint.weight_bytes)
        return build_model(checkpoint, dtype, progress=lambda done: bar.update(task, completed=done))


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
