"""Scheduler: who gets the budget, in which order, and what a shared prefix saves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from simulator import params, prompt, simulation, tokens_of

from inferx.engine.request import Status

# The budget


def test_decodes_come_first_and_every_step_has_them() -> None:
    sim = simulation()
    a = sim.add("a", prompt(10), params(100))
    sim.step()
    sim.add("long", prompt(64 * 20, 1), params(1))
    for _ in range(30):
        out = sim.step()
        assert out.scheduled[0].seq is a.sequences[0]
        assert out.num_decodes >= 1
        assert out.total_num_tokens <= 64
    assert a.sequences[0].num_output_tokens == 31


def test_a_long_prompt_alone_gets_the_whole_budget() -> None:
    sim = simulation()
    sim.add("a", prompt(64 * 3 + 10), params(1))
    assert [sim.step().total_num_tokens for _ in range(4)] == [64, 64, 64, 10]


def test_a_short_prompt_starts_while_a_long_one_is_under_way() -> None:
    """Case B07: a stream, a prompt of 20 budgets, then a short prompt."""
    sim = simulation()
    a = sim.add("a", prompt(10), params(100))
    sim.step()
    b = sim.add("b", prompt(64 * 20, 1), params(1))
    sim.step()
    c = sim.add("c", prompt(8, 2), params(8))
    out = sim.step()
    assert tokens_of(out) == {"a": 1, "b": 55, "c": 8}
    assert c.sequences[0].num_output_tokens == 1
    while not c.sequences[0].finished:
        sim.step()
    assert b.sequences[0].num_computed_tokens < 64 * 20 * 0.6
    sim.run()
    assert a.sequences[0].num_output_tokens == 100


def test_a_long_prompt_keeps_half_whatever_stands_behind_it() -> None:
    sim = simulation(max_num_seqs=32)
    sim.add("long", prompt(64 * 4), params(1))
    for i in range(30):
        sim.add(f"s{i}", prompt(30, i + 1), params(1))
    out = sim.step()
    assert tokens_of(out) == {"long": 32, "s0": 30, "s1": 2}
    out = sim.step()
    assert tokens_of(out) == {"long": 32, "s1": 28, "s2": 4}
    sim.run()


def test_what_short_ones_leave_goes_back_to_the_long_ones_in_order() -> None:
    sim = simulation()
    sim.add("first", prompt(40), params(1))
    sim.add("second", prompt(200, 1), params(1))
    sim.add("third", prompt(200, 2), params(1))
    sim.add("short", prompt(5, 3), params(1))
    # 40 of 64 is long: 32 at first, the short one takes 5, first gets its other 8, second the rest.
    assert tokens_of(sim.step()) == {"first": 40, "short": 5, "second": 19}
    assert tokens_of(sim.step()) == {"second": 64}
    sim.run()


def test_less_urgent_short_prompts_get_only_what_is_left() -> None:
    sim = simulation()
    sim.add("long", prompt(100), params(1))
    sim.add("short", prompt(5, 1), params(1), priority=1)
    assert tokens_of(sim.step()) == {"long": 64}
    assert tokens_of(sim.step()) == {"long": 36, "short": 5}


def test_the_long_prefill_threshold_caps_a_chunk() -> None:
    sim = simulation(long_prefill_token_threshold=10)
    sim.add("a", prompt(100), params(1))
    sim.add("b", prompt(100, 1), params(1))
    sim.add("c", prompt(100, 2), params(1))
    assert tokens_of(sim.step()) == {"a": 10, "b": 10, "c": 10}
    assert tokens_of(sim.step()) == {"a": 10, "b": 10, "c": 10}
    sim.run()


def test_what_is_reserved_for_a_postponed_prompt_does_not_stand_in_its_own_way() -> None:
    sim = simulation(num_blocks=27, max_num_seqs=2)
    sim.add("first", prompt(64 + 33), params(1))  # 7 blocks
    sim.add("second", prompt(320, 1), params(1))  # all the other 20
    assert tokens_of(sim.step()) == {"first": 64}
    # 33 are still long: 32 of them at first, then the last one, then the second prompt.
    assert tokens_of(sim.step()) == {"first": 33, "second": 31}
    sim.run()


def test_a_second_long_prompt_comes_in_when_there_is_budget_for_it() -> None:
    sim = simulation()
    sim.add("first", prompt(200), params(1))
    second = sim.add("second", prompt(200, 1), params(1)).sequences[0]
    sim.add("short", prompt(32, 2), params(1))
    assert tokens_of(sim.step()) == {"first": 32, "short": 32}
    assert second.status is Status.WAITING
    sim.run()


def test_a_long_prompt_that_is_mostly_cached_counts_as_short() -> None:
    sim = simulation()
    sim.add("before", prompt(193), params(1))
    sim.run()
    sim.add("first", prompt(200, 1), params(1))
    sim.add("second", [*prompt(192), 7, 7, 7, 7], params(1))
    sim.add("third", prompt(200, 2), params(1))
    assert tokens_of(sim.step()) == {"first": 60, "second": 4}
    sim.run()


def test_a_postponed_prompt_without_room_is_not_overtaken_by_another() -> None:
    sim = simulation(num_blocks=26, max_num_seqs=4)
    sim.add("first", prompt(64 + 33), params(1))  # 7 blocks
    sim.add("second", prompt(320, 1), params(1))  # 20
    sim.add("third", prompt(100, 2), params(1))  # 7
    assert tokens_of(sim.step()) == {"first": 64}
    assert tokens_of(sim.step()) == {"first": 33}
    assert tokens_of(sim.step()) == {"second": 64}
    sim.run()


def test_a_postponed_long_prompt_is_not_robbed_of_its_place() -> None:
    """Its slot and blocks stay reserved while short ones pass."""
    sim = simulation(num_blocks=32, max_num_seqs=4)  # 512 tokens
    sim.add("first", prompt(200), params(1))  # 13 blocks
    second = sim.add("second", prompt(200, 1), params(1))  # 13 more
    for i in range(6):
        sim.add(f"s{i}", prompt(30, i + 2), params(100))  # 2 blocks each, and they grow
    while second.sequences[0].status is Status.WAITING:
        sim.step()
        assert sim.num_steps < 8
    sim.run()


# Order


def test_first_come_first_served_among_equals() -> None:
    sim = simulation(max_num_seqs=1)
    order = []
    for name, arrival in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        sim.add(name, prompt(5), params(2), arrival_time=arrival)
    while sim.scheduler.has_unfinished():
        order += [s.request_id for s in sim.step().admitted]
    assert order == ["a", "b", "c"]


@pytest.mark.parametrize(("policy", "expected"), [("priority", ["c", "b", "a"]), ("fcfs", ["a", "b", "c"])])
def test_lower_priority_values_first(policy: str, expected: list[str]) -> None:
    sim = simulation(max_num_seqs=1, policy=policy)
    order = []
    for name, priority in (("a", 5), ("b", 0), ("c", -5)):
        sim.add(name, prompt(5), params(2), priority=priority)
    while sim.scheduler.has_unfinished():
        order += [s.request_id for s in sim.step().admitted]
    assert order == expected


def test_an_urgent_prompt_goes_before_one_under_way() -> None:
    sim = simulation()
    sim.add("slow", prompt(300), params(1), priority=1)
    sim.step()
    sim.add("urgent", prompt(100, 1), params(1))
    assert tokens_of(sim.step()) == {"urgent": 64}
    assert tokens_of(sim.step()) == {"urgent": 36, "slow": 28}


@pytest.mark.parametrize("short_of", ["blocks", "slots"])
def test_nobody_overtakes_a_request_that_waits_for_room(short_of: str) -> None:
    sim = simulation(num_blocks=16, max_num_seqs=4) if short_of == "blocks" else simulation(max_num_seqs=4)
    sim.add("running", prompt(100), params(5, n=2))
    sim.step()
    sim.step()
    if short_of == "blocks":
        big = sim.add("big", prompt(160, 1), params(2))
    else:
        big = sim.add("big", prompt(16, 1), params(2, n=3))
    for i in range(5):
        sim.add(f"s{i}", prompt(3, i + 2), params(2))
    while big.sequences[0].status is Status.WAITING:
        out = sim.step()
        assert (
            not [s for s in out.admitted if s.request_id.startswith("s")]
            or out.admitted[0] is big.sequences[0]
        )
    sim.run()


# The prefix cache


def test_a_shared_prefix_is_computed_once() -> None:
    """16 requests at once that share 1,024 tokens; also across a partly filled block."""
    for shared in (1024, 1030):
        sim = simulation(num_blocks=512, max_num_seqs=16, max_num_batched_tokens=512)
        jobs = [sim.add(f"r{i}", [9] * shared + prompt(32, i), params(32)) for i in range(16)]
        sim.run()
        computed = sum(job.sequences[0].num_computed_prompt_tokens for job in jobs)
        assert computed <= shared + 16 * 32 + 15 * (shared % 16)
        assert sim.num_steps < 3 + 32 + 3


def test_a_short_shared_prefix_is_not_worth_waiting_for() -> None:
    sim = simulation(max_num_batched_tokens=512)
    for i in range(4):
        sim.add(f"r{i}", [9] * 16 + prompt(20, i), params(2))
    assert len(sim.step().admitted) == 4


def test_who_waits_for_a_prefix_lets_others_pass_but_keeps_its_place() -> None:
    sim = simulation(max_num_seqs=3)
    sim.add("first", [9] * 200 + prompt(5), params(50))
    sim.step()
    twin = sim.add("twin", [9] * 200 + prompt(5, 1), params(2)).sequences[0]
    for i in range(3):
        sim.add(f"other{i}", prompt(5, i + 2), params(50))
    admitted = []
    while twin.status is Status.WAITING:
        admitted += [s.request_id for s in sim.step().admitted]
    assert admitted == ["other0", "twin"]  # of 3 slots, one was kept for it all the time
    assert twin.num_cached_tokens >= 192
    sim.run()


def test_who_waits_for_a_prefix_keeps_its_blocks() -> None:
    sim = simulation(num_blocks=20)
    sim.add("first", [9] * 160 + prompt(5), params(1))  # 11 blocks
    sim.step()
    twin = sim.add("twin", [9] * 160 + prompt(80, 1), params(1)).sequences[0]  # 5 more
    for i in range(2):
        sim.add(f"other{i}", prompt(30, i + 2), params(2))  # 2 each, and there are 4 left
    sim.add("big", prompt(70, 4), params(1))  # 5
    admitted = []
    while twin.status is Status.WAITING:
        admitted += [s.request_id for s in sim.step().admitted]
    assert admitted == ["other0", "other1", "twin"]
    sim.run()


def test_a_postponed_prompt_that_waits_for_a_prefix_blocks_no_other() -> None:
    sim = simulation(long_prefill_token_threshold=10)
    for i in range(5):  # long ones fill their half: 10, 10, 10, 2, and the fifth is postponed
        sim.add(f"r{i}", prompt(100, i), params(1))
    sim.add("twin", prompt(100, 4), params(1))
    sim.add("other", prompt(100, 6), params(1))
    assert tokens_of(sim.step()) == {"r0": 10, "r1": 10, "r2": 10, "r3": 10, "r4": 10, "other": 10}
    sim.run()


def test_who_waits_for_a_prefix_goes_on_when_its_owner_leaves() -> None:
    sim = simulation()
    sim.add("first", [9] * 300, params(2))
    twin = sim.add("twin", [9] * 300 + prompt(5, 1), params(2))
    sim.step()
    assert twin.sequences[0].status is Status.WAITING
    sim.abort("first")
    assert tokens_of(sim.step()) == {"twin": 64}
    assert twin.sequences[0].num_cached_tokens == 64
    sim.run()


def test_nobody_waits_for_a_less_urgent_owner() -> None:
    sim = simulation()
    sim.add("slow", [9] * 300, params(2), priority=1)
    sim.step()
    sim.add("urgent", [9] * 300, params(2))
    assert tokens_of(sim.step()) == {"urgent": 64}
    sim.run()


def test_hits_are_counted_and_fall_when_others_need_the_room() -> None:
    """Case B05: the same prompt again, cached; after traffic that evicts it, not."""
    sim = simulation(num_blocks=20, max_num_batched_tokens=512)
    stats = sim.scheduler.stats

    def hits(name: str) -> int:
        before = stats().prefix_cache_hits
        job = sim.add(name, prompt(100), params(3))
        sim.run()
        assert job.sequences[0].num_cached_tokens == stats().prefix_cache_hits - before
        return stats().prefix_cache_hits - before

    assert [hits("a"), hits("b")] == [0, 96]
    for length, left in ((300, 16), (318, 0)):  # 19 of the 20 blocks, then all of them
        sim.add(f"filler{length}", prompt(length, length), params(2))
        sim.run()
        assert hits(f"c{length}") == left
    assert stats().prefix_cache_queries == 4 * 100 + 300 + 318
    assert stats().num_cached_blocks > 0


def test_equal_text_under_other_keys_is_not_found() -> None:
    """Case B09x."""
    sim = simulation(max_num_batched_tokens=512)
    keys: list[dict[str, str]] = [
        {},
        {"adapter": "a"},
        {"adapter": "b"},
        {"salt": "a"},
        {"prefix_key": "a"},
        {"adapter": "a:2"},
        {"salt": "a", "adapter": "a"},
    ]
    for i, key in enumerate(keys):
        for j, cached in ((0, 0), (1, 96)):
            job = sim.add(f"r{i}.{j}", prompt(100), params(2), **key)
            sim.run()
            assert job.sequences[0].num_cached_tokens == cached, key


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_block_sizes(block_size: int, caching: bool) -> None:
    """Case B11x: a pool under pressure, prompts that are not multiples of the block."""
    sim = simulation(
        num_blocks=256 // block_size, block_size=block_size, max_model_len=200, enable_prefix_caching=caching
    )
    for i in range(6):
        sim.add(f"r{i}", [9] * 33 + prompt(10 + 7 * i, i), params(60, n=1 + i % 2))
    sim.run()
    stats = sim.scheduler.stats()
    assert stats.num_preemptions > 0
    assert (stats.num_cached_blocks > 0) == caching
