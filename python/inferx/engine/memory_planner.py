"""Which plan divides the memory of which device, and from which figures."""

from __future__ import annotations

import torch

from inferx.engine.args import EngineArgs
from inferx.engine.device import Device
from inferx.engine.device_memory import (
    DeviceUse,
    computed_use,
    dense_weight_bytes,
    plan_device_memory,
)
from inferx.engine.device_profile import measured_use
from inferx.engine.memory import MemoryPlan, packed_weight_bytes, plan_memory
from inferx.layers.placement import Placement
from inferx.loader.checkpoint import Checkpoint
from inferx.models.decoder import Decoder
from inferx.models.parameters import count_parameters
from inferx.models.rotaries import rotary_table_bytes


class MemoryPlanner:
    """Plans before the weights are read, and on a GPU once more when they are there."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        args: EngineArgs,
        device: Device,
        where: Placement,
        kv_dtype: torch.dtype,
    ) -> None:
        self._checkpoint = checkpoint
        self._args = args
        self._device = device
        self._where = where
        self._kv_dtype = kv_dtype
        self._parameters = count_parameters(checkpoint.config, str(checkpoint.path))
        self._free_at_start = self._total = 0
        self._computed: DeviceUse | None = None

    @property
    def graph_bytes(self) -> int:
        """That CUDA graphs may take; 0 where there are none."""
        return 0 if self._computed is None else self._computed.graphs

    def before_loading(self, max_model_len: int) -> MemoryPlan:
        """MemoryBudgetError when the model cannot fit."""
        checkpoint, args = self._checkpoint, self._args
        if self._device.kind != "cuda":
            if self._device.is_cpu:
                weights = packed_weight_bytes(checkpoint, args.dtype)
            else:
                weights = dense_weight_bytes(checkpoint, self._where.dtype.itemsize)
            return plan_memory(
                checkpoint.config,
                args,
                weight_bytes=weights,
                kv_dtype=self._kv_dtype,
                max_model_len=max_model_len,
                parameters=self._parameters,
            )
        self._free_at_start, self._total = torch.cuda.mem_get_info(self._device.torch_device)
        self._computed = computed_use(
            checkpoint.config,
            args,
            weights=dense_weight_bytes(checkpoint, self._where.dtype.itemsize),
            tables=rotary_table_bytes(checkpoint.config, max_model_len),
            activation_dtype=self._where.dtype,
            max_model_len=max_model_len,
        )
        return self._plan(self._computed, max_model_len)

    def after_loading(self, model: Decoder, max_model_len: int) -> MemoryPlan:
        """On a GPU: with measured figures.  MemoryBudgetError when the formulas were too kind."""
        assert self._computed is not None
        max_num_seqs, max_num_batched_tokens = self._args.limits("cuda")
        use = measured_use(
            model,
            self._device,
            self._computed,
            free_at_start=self._free_at_start,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_blocks=-(-max_model_len // self._args.block_size),
            block_size=self._args.block_size,
            kv_dtype=self._kv_dtype,
        )
        return self._plan(use, max_model_len)

    def _plan(self, use: DeviceUse, max_model_len: int) -> MemoryPlan:
        quantised = any(info.quantised for info in self._checkpoint.tensors.values())
        dtype = str(self._where.dtype).removeprefix("torch.")
        return plan_device_memory(
            self._checkpoint.config,
            self._args,
            total=self._total,
            free=self._free_at_start,
            use=use,
            kv_dtype=self._kv_dtype,
            max_model_len=max_model_len,
            weights_note=f" (quantised in the file; {dtype} on the GPU)" if quantised else "",
            parameters=self._parameters,
        )
