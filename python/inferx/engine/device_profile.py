"""What a model takes of a GPU, measured on the largest step that it will ever see."""

from __future__ import annotations

import dataclasses

import torch

from inferx.engine.batch import BatchArrays, BatchShape, Layout
from inferx.engine.device import Device
from inferx.engine.device_memory import DeviceUse
from inferx.engine.runner import allocate_kv
from inferx.engine.sampler import PendingSamples, Sampler, SampleRow
from inferx.models.decoder import Decoder
from inferx.sampling_params import SamplingParams

# Samples whose results are not taken are kept: as many steps as may be under way.
STEPS = 2


def measured_use(
    model: Decoder,
    device: Device,
    computed: DeviceUse,
    *,
    free_at_start: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_blocks: int,
    block_size: int,
    kv_dtype: torch.dtype,
) -> DeviceUse:
    """``computed`` with measured weights, activations and overhead.

    free_at_start: free bytes of the GPU before the model was loaded.
    """
    gpu = device.torch_device
    with device.running():
        torch.cuda.synchronize(gpu)
        torch.cuda.empty_cache()
        loaded = torch.cuda.memory_reserved(gpu)
        torch.cuda.reset_peak_memory_stats(gpu)
        run_largest_step(
            model,
            num_samples=max_num_seqs,
            num_tokens=max_num_batched_tokens,
            max_blocks=max_blocks,
            block_size=block_size,
            kv_dtype=kv_dtype,
        )
        torch.cuda.synchronize(gpu)
        peak = torch.cuda.max_memory_reserved(gpu)
        taken = free_at_start - torch.cuda.mem_get_info(gpu)[0]
        overhead = max(0, taken - torch.cuda.memory_reserved(gpu))
        torch.cuda.empty_cache()
    return dataclasses.replace(
        computed, weights=loaded - computed.tables, activations=peak - loaded, overhead=overhead
    )


@torch.inference_mode()
def run_largest_step(
    model: Decoder,
    *,
    num_samples: int,
    num_tokens: int,
    max_blocks: int,
    block_size: int,
    kv_dtype: torch.dtype,
) -> None:
    """A step of ``num_samples`` requests with ``num_tokens`` tokens between them, and the costliest sampling.

    Its tokens are written nowhere and see nothing: what a step allocates depends on sizes only.
    """
    device = model.placement.device
    layout = Layout(BatchShape(num_tokens, num_samples, width=max_blocks))
    batch = BatchArrays(layout, torch.zeros(layout.nbytes, dtype=torch.uint8, device=device), [])
    batch["slot_mapping"].fill_(-1)
    batch["cu_seqlens_q"][1:] = torch.arange(num_tokens - num_samples + 1, num_tokens + 1, device=device)
    longest = num_tokens - num_samples + 1
    kv = allocate_kv(model, 1, block_size, kv_dtype)
    sampler = Sampler(model.config.vocab_size)
    params = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=1)
    rows = [SampleRow(params, [0], [], seed_key=i, step=0) for i in range(num_samples)]
    under_way: list[PendingSamples] = []
    for _ in range(STEPS):
        hidden = model.forward(
            batch["input_ids"],
            batch["positions"],
            batch["rope_lens"],
            kv,
            batch.attention(max_query_len=longest),
        )
        under_way.append(sampler.launch(model.compute_logits(hidden[-num_samples:]), rows))
    for pending in under_way:
        pending.results()
