"""A step's arrays: where they lie in the buffer, what they hold, and the padding behind them."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from inferx.engine import batch
from inferx.engine.batch import BatchArrays, BatchShape, Layout, build_batch
from inferx.engine.decode_batch import DecodeBatches
from inferx.engine.device import Device
from inferx.engine.request import Phase
from inferx.engine.scheduler_output import PENDING_TOKEN, ScheduledSequence
from inferx.engine.staging import NUM_BUFFERS, Staging

BLOCK = 8
DEVICE = Device("simt", torch.device("cpu"))  # staged, and its tensors are the CPU's


@dataclass
class FakeSequence:
    token_ids: list[int]
    num_prompt_tokens: int


def entry(
    first: int, count: int, prompt: int, *, samples: int = 0, source: int | None = None, seed: int = 0
) -> ScheduledSequence:
    rng = random.Random(seed)
    end = first + count
    tokens = [rng.randrange(1000) for _ in range(max(end, prompt))]
    if source is not None:
        tokens[first] = PENDING_TOKEN
    seq = FakeSequence(tokens, prompt)
    # One block more than needed: it was allocated ahead.
    table = array("i", rng.sample(range(1000), -(-end // BLOCK) + 1))
    phase = Phase.DECODE if count == 1 and first >= prompt else Phase.PREFILL
    return ScheduledSequence(seq, first, count, [seq] * samples, phase, table, source)  # type: ignore[arg-type, list-item]


ENTRIES = [
    entry(20, 1, 17, samples=1, seed=1),
    entry(7, 1, 8, samples=3, seed=2),  # the last prompt token, of a request with n = 3
    entry(9, 1, 5, samples=1, source=4, seed=3),
    entry(0, 19, 40, seed=4),
    entry(16, 24, 40, samples=1, seed=5),
    entry(3, 2, 50, seed=6),
]


def check(arrays: BatchArrays, entries: list[ScheduledSequence]) -> None:
    """Against the definitions, token by token."""
    row = 0
    samples, sources = [], []
    assert arrays["cu_seqlens_q"][0] == 0
    for i, e in enumerate(entries):
        assert arrays.first_rows[i] == row
        for position in range(e.first_position, e.first_position + e.num_tokens):
            token = 0 if e.token_source is not None else e.seq.token_ids[position]
            assert arrays["input_ids"][row] == token
            assert arrays["positions"][row] == position
            assert arrays["rope_lens"][row] == max(position + 1, e.seq.num_prompt_tokens)
            slot = e.block_table[position // BLOCK] * BLOCK + position % BLOCK
            assert arrays["slot_mapping"][row] == slot
            row += 1
        end = e.first_position + e.num_tokens
        assert arrays["cu_seqlens_q"][i + 1] == row
        assert arrays["seq_lens"][i] == end
        blocks = -(-end // BLOCK)
        table = arrays["block_tables"][i].tolist()
        assert table == e.block_table[:blocks].tolist() + [0] * (len(table) - blocks)
        samples += [row - 1] * len(e.samples)
        if e.token_source is not None:
            sources.append((row - 1, e.token_source))
    assert arrays["sample_rows"].tolist() == samples
    pairs = zip(arrays["source_rows"].tolist(), arrays["source_index"].tolist(), strict=True)
    assert list(pairs) == sources


@pytest.mark.parametrize("few", [1, batch.FEW, 100])
@pytest.mark.parametrize("count", range(len(ENTRIES) + 1))
def test_every_array(count: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FEW", few)  # decodes one by one, or together
    arrays = build_batch(ENTRIES[:count], BLOCK)
    check(arrays, ENTRIES[:count])
    assert arrays["input_ids"].dtype == arrays["slot_mapping"].dtype == torch.int64
    assert arrays["block_tables"].dtype == arrays["seq_lens"].dtype == torch.int32
    assert arrays["block_tables"].is_contiguous()


def random_shape(rng: random.Random) -> BatchShape:
    return BatchShape(
        num_tokens=rng.randint(0, 40),
        batch=rng.randint(0, 9),
        width=rng.randint(0, 9),
        samples=rng.randint(0, 9),
        sources=rng.randint(0, 5),
        copies=rng.randint(0, 3),
    )


def test_arrays_are_aligned_and_apart(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        layout = Layout(random_shape(rng))
        end = 0
        for start, wide, size in layout.fields.values():
            assert start % 16 == 0
            assert start >= end
            end = start + int(np.prod(size)) * (8 if wide else 4)
        assert end <= layout.nbytes < end + 16


def test_what_a_graph_reads_stays_in_its_place(seed: int) -> None:
    """Whatever else is in the step: a graph was captured with these addresses."""
    rng = random.Random(seed)
    names = ("input_ids", "positions", "rope_lens", "slot_mapping", "cu_seqlens_q", "seq_lens")
    captured = Layout(BatchShape(num_tokens=8, batch=8, padded=8))
    for _ in range(50):
        layout = Layout(random_shape(rng)._replace(num_tokens=8, batch=8, padded=rng.randint(0, 7)))
        assert all(layout.fields[name] == captured.fields[name] for name in names)


def make_staging(**sizes: int) -> Staging:
    defaults = {"max_tokens": 64, "max_batch": 8, "max_blocks": 16, "block_size": BLOCK}
    return Staging(DEVICE, **{**defaults, **sizes})


@pytest.mark.parametrize("pad_to", [3, 4, 8])
def test_padding(pad_to: int) -> None:
    staging = make_staging()
    staging.stage(ENTRIES)  # leaves its numbers in the buffers
    staging.stage(ENTRIES)
    decodes = ENTRIES[:3]
    arrays = staging.stage(decodes, pad_to=pad_to)
    check(arrays, decodes)
    assert len(arrays["input_ids"]) == len(arrays["seq_lens"]) == pad_to
    for row in range(3, pad_to):
        assert arrays["input_ids"][row] == 0
        assert arrays["positions"][row] == 0
        assert arrays["rope_lens"][row] == 1
        assert arrays["slot_mapping"][row] == -1
        assert arrays["seq_lens"][row] == 0
        assert arrays["cu_seqlens_q"][row + 1] == row + 1
        assert (arrays["block_tables"][row] == 0).all()


def test_nothing_but_padding() -> None:
    arrays = make_staging().stage([], pad_to=4)
    assert arrays["cu_seqlens_q"].tolist() == [0, 1, 2, 3, 4]
    assert arrays["slot_mapping"].tolist() == [-1] * 4
    assert arrays["block_tables"].shape == (4, 0)


def test_block_copies_travel_along() -> None:
    arrays = make_staging().stage(ENTRIES, block_copies=[(3, 5), (7, 11)])
    assert arrays["block_copies"].tolist() == [[3, 5], [7, 11]]
    check(arrays, ENTRIES)


def test_a_step_that_is_larger_than_foreseen_is_refused() -> None:
    with pytest.raises(ValueError, match="were foreseen"):
        make_staging(max_tokens=8, max_batch=2, max_blocks=2).stage(ENTRIES)


@dataclass
class FakeEvent:
    """Notes when it was recorded and waited for."""

    log: list[str]
    name: str = field(default="")

    def record(self) -> None:
        self.log.append(f"record {self.name}")

    def synchronize(self) -> None:
        self.log.append(f"wait {self.name}")


def test_a_host_buffer_is_written_again_only_after_its_copy() -> None:
    """Copies that are delayed: what they bring is what was staged, not what came later."""
    log: list[str] = []
    names = iter("ab")
    staging = make_staging_with_events(log, names)
    for step in range(5):
        before = [host.array.copy() for host in staging._hosts]
        staging.stage(ENTRIES[step : step + 1])
        turn = step % NUM_BUFFERS
        for i, host in enumerate(staging._hosts):
            assert (i == turn) or np.array_equal(host.array, before[i])
    assert log == ["record a", "record b", "wait a", "record a", "wait b", "record b", "wait a", "record a"]


def make_staging_with_events(log: list[str], names: object) -> Staging:
    return Staging(
        DEVICE,
        max_tokens=64,
        max_batch=8,
        max_blocks=16,
        block_size=BLOCK,
        make_event=lambda: FakeEvent(log, next(names)),  # type: ignore[call-overload]
    )


def decode(seq: FakeSequence, table: array[int], position: int) -> ScheduledSequence:
    return ScheduledSequence(seq, position, 1, [seq], Phase.DECODE, table)  # type: ignore[arg-type, list-item]


def test_kept_arrays_of_decode_steps_are_those_of_a_fresh_batch(seed: int) -> None:
    """Sequences come, go, grow, lose their blocks, and copy the last one before they write to it."""
    rng = random.Random(seed)
    batches = DecodeBatches(BLOCK)
    running: list[tuple[FakeSequence, array[int], int]] = []
    for _ in range(300):
        running = [(s, t, p + 1) for s, t, p in running if rng.random() > 0.05]
        if not running or rng.random() < 0.2:
            prompt = rng.randint(1, 30)
            running.insert(
                rng.randint(0, len(running)),
                (FakeSequence([rng.randrange(1000) for _ in range(400)], prompt), array("i"), prompt),
            )
        if rng.random() < 0.1:  # preempted, and back with other blocks
            at = rng.randrange(len(running))
            running[at] = (running[at][0], array("i"), running[at][2])
        for _, table, position in running:
            while len(table) * BLOCK <= position:
                table.append(rng.randrange(1000))
            if rng.random() < 0.1:
                table[position // BLOCK] = rng.randrange(1000)
            if rng.random() < 0.1:
                table.append(rng.randrange(1000))  # allocated ahead
                del table[max(position // BLOCK + 1, len(table) - 1) :]
        entries = [decode(*item) for item in running]
        arrays = batches.build(entries)
        check(arrays, entries)
        expected, meta = build_batch(entries, BLOCK), arrays.attention()
        for name in arrays.layout.fields:
            assert torch.equal(arrays[name], expected[name]), name
        assert meta.max_query_len is None
        for name in ("block_tables", "cu_seqlens_q", "seq_lens", "slot_mapping"):
            assert torch.equal(getattr(meta, name), expected[name]), name
