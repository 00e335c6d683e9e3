"""Scheduler: who goes when blocks run out, and how it comes back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from simulator import Simulation, params, prompt, simulation

from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.request import Phase, Sequence, Status

# Preemption


def decoding(sim: Simulation, *lengths: int, priorities: tuple[int, ...] = ()) -> list[Sequence]:
    """Requests of these prompt lengths, all past their first token."""
    jobs = [
        sim.add(f"r{i}", prompt(n, i), params(None), priority=priorities[i] if priorities else 0)
        for i, n in enumerate(lengths)
    ]
    while any(job.sequences[0].num_output_tokens == 0 for job in jobs):
        sim.step()
    return [job.sequences[0] for job in jobs]


def first_victim(sim: Simulation) -> Sequence:
    while True:
        out = sim.step()
        if out.preempted:
            return out.preempted[0]


def test_the_cheapest_to_recompute_goes() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    a, b, c = decoding(sim, 60, 20, 90)
    victim = first_victim(sim)
    assert victim is b
    assert victim.status is Status.PREEMPTED
    assert victim.num_preemptions == 1
    assert sim.scheduler.waiting == [b]
    assert sim.scheduler.running == [a, c]
    sim.run()


def test_the_first_in_order_is_spared() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    _, b, _ = decoding(sim, 20, 60, 90)
    assert first_victim(sim) is b
    sim.run()


def test_only_the_least_urgent_go() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    *_, d = decoding(sim, 60, 20, 15, 80, priorities=(0, 0, 0, 1))
    assert first_victim(sim) is d
    sim.run()


def test_of_equals_the_last_goes() -> None:
    sim = simulation(num_blocks=15, max_num_batched_tokens=256)
    *_, d = decoding(sim, 40, 40, 40, 40)
    assert first_victim(sim) is d
    sim.run()


def test_shared_blocks_cost_nothing_to_get_back() -> None:
    sim = simulation(num_blocks=20, max_num_batched_tokens=256)
    sim.add("a", [9] * 112 + [2], params(None))
    sim.step()
    shares = sim.add("b", [9] * 112 + [3] * 10, params(None)).sequences[0]
    own = sim.add("c", prompt(60, 5), params(None)).sequences[0]
    victim = first_victim(sim)
    assert victim is shares
    assert len(shares.token_ids) > len(own.token_ids)
    sim.run()


def test_a_preempted_request_goes_on_where_it_was() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    decoding(sim, 60, 20, 90)
    victim = first_victim(sim)
    so_far = victim.output_token_ids
    known, computed = victim.num_tokens, victim.recompute_end
    assert computed == known - 1
    resumed = None
    while resumed is None:
        out = sim.step()
        resumed = next((e for e in out.scheduled if e.seq is victim), None)
    assert out.resumed == [victim]
    assert resumed.first_position + resumed.num_tokens == known
    assert resumed.phase is (Phase.DECODE if resumed.first_position == computed else Phase.RECOMPUTE)
    assert victim.num_recomputed_tokens == computed - resumed.first_position
    assert victim.output_token_ids[:-1] == so_far
    sim.run()
    assert victim.num_cached_tokens == 0  # of the first admission


def test_who_finds_everything_cached_decodes_at_once() -> None:
    sim = simulation(num_blocks=15, max_num_batched_tokens=256)
    *others, d = decoding(sim, 40, 40, 40, 40)
    assert first_victim(sim) is d
    for seq in others:
        sim.abort(seq.request_id)
    out = sim.step()
    assert out.resumed == [d]
    assert [(e.first_position, e.num_tokens, e.phase) for e in out.scheduled] == [(48, 1, Phase.DECODE)]
    assert d.num_recomputed_tokens == 0
    sim.run()


def test_recomputed_tokens_are_counted() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256, enable_prefix_caching=False)
    decoding(sim, 60, 20, 90)
    victim = first_victim(sim)
    lost = victim.recompute_end
    sim.abort("r0")
    sim.abort("r2")
    sim.run()
    assert victim.num_recomputed_tokens == lost
    assert victim.num_computed_prompt_tokens == 20
    assert victim.num_prefill_chunks == 2
    assert victim.num_decode_steps == victim.num_output_tokens - 2
    assert sim.scheduler.stats().num_preemptions >= 1


def test_a_prompt_under_way_can_be_the_victim() -> None:
    sim = simulation(block_size=1, num_blocks=28, max_num_seqs=2, max_num_batched_tokens=4)
    sim.add("a", prompt(5), params(None))
    b = sim.add("b", prompt(20, 1), params(1), priority=1).sequences[0]
    while b.status is not Status.PREEMPTED:
        out = sim.step()
    assert 0 < b.recompute_end < 20
    assert [e.seq.request_id for e in out.scheduled] == ["a"]
    assert out.preempted == [b]
    assert b.num_output_tokens == 0
    sim.run()
    assert b.num_computed_prompt_tokens == 20
    assert b.num_preemptions == 1


def test_nobody_comes_in_while_somebody_is_thrown_out() -> None:
    sim = simulation(num_blocks=12, max_num_seqs=2, max_num_batched_tokens=256)
    sim.add("a", prompt(60), params(100))
    sim.add("b", prompt(60, 1), params(100), priority=1)
    sim.step()
    urgent = sim.add("urgent", prompt(3, 2), params(2)).sequences[0]  # waits for a slot
    assert first_victim(sim).request_id == "b"
    assert urgent.status is Status.WAITING
    assert sim.step().admitted == [urgent]
    sim.run()


def test_a_request_that_cannot_grow_needs_no_room_to_grow() -> None:
    for max_tokens, admitted in ((5, ["b"]), (6, [])):  # 12 + 5 - 1 tokens fill block 1
        sim = simulation(num_blocks=2, max_num_batched_tokens=256)
        sim.add("a", prompt(12), params(max_tokens))
        sim.step()
        sim.add("b", prompt(12, 1), params(2))
        assert [s.request_id for s in sim.step().admitted] == admitted
        sim.run()


def test_admission_leaves_room_for_those_who_run_to_grow() -> None:
    """Without it, requests would be taken in only to be thrown out a moment later."""
    sim = simulation(num_blocks=20, max_num_batched_tokens=512, enable_prefix_caching=False)
    for i in range(8):
        sim.add(f"r{i}", prompt(47, i), params(60))
    last_admission, gaps = 0, []
    while sim.scheduler.has_unfinished():
        out = sim.step()
        if out.admitted or out.resumed:
            last_admission = sim.num_steps
        if out.preempted:
            gaps.append(sim.num_steps - last_admission)
    assert gaps[0] >= 16  # a block's worth of steps
    assert min(gaps) >= 4


def test_preemptions_are_few() -> None:
    """Each one is paid for by a block that somebody filled, so they cannot go round in circles."""
    sim = simulation(num_blocks=10, max_num_batched_tokens=128, max_model_len=100)
    for i in range(12):
        sim.add(f"r{i}", prompt(20 + i, i), params(None))
    sim.run()
    stats = sim.scheduler.stats()
    assert 0 < stats.num_preemptions <= stats.generation_tokens / 16


def test_a_steady_stream_of_newcomers_does_not_starve_anybody() -> None:
    sim = simulation(num_blocks=12, max_num_seqs=4, max_model_len=150)
    old = [sim.add(f"old{i}", prompt(60, i), params(40)) for i in range(3)]
    step = 0
    while not all(job.sequences[0].finished for job in old):
        if step % 3 == 0:
            sim.add(f"new{step}", prompt(10 + step % 40, 5 + step), params(20))
        sim.step()
        step += 1
        assert step < 400
    sim.run()


def test_lost_blocks_are_noticed_not_waited_for() -> None:
    sim = simulation(num_blocks=4)
    decoding(sim, 20)
    while sim.scheduler.kv.pool.num_free:
        sim.scheduler.kv.pool.allocate()
    while sim.scheduler.running[0].num_computed_tokens < 32:
        sim.scheduler.update(sim.scheduler.schedule(), [5])
    with pytest.raises(BlockAccountingError, match="blocks were lost"):
        sim.scheduler.schedule()
