"""KVManager: look-up, tables, copy on write, what is recorded and what is given back."""

from __future__ import annotations

import pytest

from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.kv_manager import KVManager
from inferx.engine.prefix_cache import root_digest
from inferx.engine.protocol import EngineRequest
from inferx.engine.request import Request, Sequence
from inferx.sampling_params import SamplingParams

SIZE = 4
_number = iter(range(10**6))


def make(tokens: list[int], salt: str | None = None, priority: int = 0, **params: int) -> Sequence:
    request = EngineRequest("r", tokens, SamplingParams(**params), 0.0, cache_salt=salt)
    return Request(request, root_digest(cache_salt=salt), priority, next(_number), 1000).sequences[0]


def admit(kv: KVManager, seq: Sequence) -> int:
    """Returns the number of cached tokens used."""
    assert kv.admit(seq, kv.lookup(seq))
    return seq.num_computed_tokens


def finish_copies(kv: KVManager) -> None:
    kv.take_copies()
    kv.finish_copies()


def compute(kv: KVManager, seq: Sequence) -> None:
    finish_copies(kv)
    kv.advance(seq, seq.num_tokens)


def through(kv: KVManager, tokens: list[int], salt: str | None = None) -> int:
    """Compute a prompt and let it go; returns how many of its tokens were cached."""
    seq = make(tokens, salt)
    cached = admit(kv, seq)
    compute(kv, seq)
    kv.free(seq)
    kv.check_invariants([])
    return cached


def test_nothing_is_found_at_first_then_all_but_the_last_token() -> None:
    kv = KVManager(8, SIZE)
    for length in (1, 3, 4, 5, 8, 9, 11):
        kv = KVManager(8, SIZE)
        prompt = list(range(length))
        assert through(kv, prompt) == 0
        full = length // SIZE * SIZE
        assert through(kv, prompt) == min(full, length - 1), f"prompt of {length}"


def test_a_partly_matching_block_is_copied_not_shared() -> None:
    kv = KVManager(8, SIZE)
    first = make([1, 2, 3, 4, 5, 6, 7, 8, 9])
    admit(kv, first)
    compute(kv, first)
    second = make([1, 2, 3, 4, 5, 6, 70, 80, 90])
    assert admit(kv, second) == 6
    assert second.block_table[0] == first.block_table[0]
    assert kv.pending_copies() == [(first.block_table[1], second.block_table[1])]
    assert kv.pool.ref_counts[first.block_table[1]] == 2  # held until the copy has run
    kv.check_invariants([first, second])
    finish_copies(kv)
    assert kv.pool.ref_counts[first.block_table[1]] == 1
    kv.check_invariants([first, second])


def test_the_source_of_a_pending_copy_is_not_evicted() -> None:
    """A pool in which the only block left for the prompt would be the source."""
    kv = KVManager(4, SIZE)
    through(kv, [1, 2, 3, 4])
    (source,) = kv.pool.evictable_blocks()
    seq = make([1, 2, 30, 40, 5, 6, 7, 8, 9])  # 3 blocks, 3 blank ones
    assert admit(kv, seq) == 2
    assert kv.pending_copies() == [(source, seq.block_table[0])]
    assert source not in seq.block_table
    assert kv.pool.num_free == 0
    compute(kv, seq)
    assert kv.pool.evictable_blocks() == [source]


def test_a_partial_match_gives_way_when_its_block_is_needed() -> None:
    kv = KVManager(3, SIZE)
    through(kv, [1, 2, 3, 4])
    seq = make([1, 2, 30, 40, 5, 6, 7, 8, 9])  # needs all 3 blocks
    assert admit(kv, seq) == 0
    assert kv.pending_copies() == []
    kv.check_invariants([seq])


def test_admission_takes_all_blocks_or_none() -> None:
    kv = KVManager(5, SIZE)
    through(kv, [1, 2, 3, 4])
    busy = make([9] * 5)
    admit(kv, busy)
    seq = make([1, 2, 3, 4] * 4)
    before = kv.pool.evictable_blocks(), kv.pool.num_free
    # 1 of its 4 blocks is cached, but unreferenced: it is among the 3 free ones and cannot count twice.
    assert not kv.admit(seq, kv.lookup(seq))
    assert before == (kv.pool.evictable_blocks(), kv.pool.num_free)
    assert not seq.block_table
    smaller = make([1, 2, 3, 4] * 3)
    assert not kv.admit(smaller, kv.lookup(smaller), headroom=1)
    assert kv.admit(smaller, kv.lookup(smaller), headroom=0)
    kv.check_invariants([busy, smaller])


def test_admitting_twice_is_an_error() -> None:
    kv = KVManager(5, SIZE)
    seq = make([1])
    admit(kv, seq)
    with pytest.raises(BlockAccountingError, match="holds blocks already"):
        kv.admit(seq, kv.lookup(seq))


def test_generated_tokens_are_found_too() -> None:
    kv = KVManager(8, SIZE)
    seq = make([1, 2, 3])
    admit(kv, seq)
    compute(kv, seq)
    for token in range(10, 17):
        seq.token_ids.append(token)
        assert kv.allocate_slots(seq, 1)
        kv.advance(seq, seq.num_computed_tokens + 1)
    kv.free(seq)
    assert through(kv, [1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17]) == 8


def test_a_block_is_not_found_before_it_is_computed() -> None:
    kv = KVManager(8, SIZE)
    seq = make(list(range(12)))
    admit(kv, seq)
    assert kv.lookup(make(list(range(12)))).blocks == []
    kv.advance(seq, 7)
    assert kv.lookup(make(list(range(12)))).blocks == [seq.block_table[0]]
    assert kv.lookup(make(list(range(12)))).partial_tokens == 0
    kv.advance(seq, 8)
    assert kv.lookup(make(list(range(12)))).blocks == list(seq.block_table[:2])


def test_prompt_logprobs_read_nothing_and_still_fill_the_cache() -> None:
    """Case B03: 33 then 49 tokens, then the other way round, then after a plain request."""
    for lengths in ([33, 49], [49, 33]):
        kv = KVManager(16, 16)
        for length in lengths:
            seq = make(list(range(length)), prompt_logprobs=1)
            assert admit(kv, seq) == 0
            compute(kv, seq)
            kv.free(seq)
        assert through(kv, list(range(49))) == max(lengths) // 16 * 16
        again = make(list(range(33)), prompt_logprobs=1)
        assert admit(kv, again) == 0


def test_prompt_logprobs_use_the_cache_once_the_prompt_is_done() -> None:
    kv = KVManager(16, SIZE)
    through(kv, list(range(12)))
    seq = make(list(range(12)), prompt_logprobs=1)
    seq.token_ids.append(12)
    assert admit(kv, seq) == 12


def test_salts_and_models_do_not_meet() -> None:
    """Case B09x: the first use in every namespace finds nothing, the second its own."""
    kv = KVManager(64, SIZE)
    prompt = list(range(20))
    for salt in (None, "a", "b", ""):
        assert through(kv, prompt, salt) == 0
        assert through(kv, prompt, salt) == 19


def test_without_caching_nothing_is_recorded() -> None:
    kv = KVManager(8, SIZE, enable_prefix_caching=False)
    assert through(kv, list(range(9))) == 0
    assert through(kv, list(range(9))) == 0
    assert len(kv.cache) == 0
    assert kv.pool.num_evictable == 0


def forked(kv: KVManager, length: int, n: int) -> list[Sequence]:
    request = EngineRequest("r", list(range(length)), SamplingParams(n=n), 0.0)
    seqs = Request(request, root_digest(), 0, next(_number), 1000).sequences
    admit(kv, seqs[0])
    compute(kv, seqs[0])
    for child in seqs[1:]:
        kv.fork(seqs[0], child)
    for i, seq in enumerate(seqs):
        seq.token_ids.append(100 + i)
    kv.check_invariants(seqs)
    return seqs


def test_forks_share_everything_and_all_but_one_copy_to_write() -> None:
    kv = KVManager(16, SIZE)
    seqs = forked(kv, 6, 3)
    shared = list(seqs[0].block_table)
    assert [list(s.block_table) for s in seqs] == [shared] * 3
    assert kv.pool.num_referenced == 2
    for seq in seqs:
        assert kv.allocate_slots(seq, 1)
        kv.check_invariants(seqs)
    assert [s.block_table[0] for s in seqs] == [shared[0]] * 3
    last = [s.block_table[1] for s in seqs]
    assert len(set(last)) == 3
    assert last[2] == shared[1]  # two have left it, so the third may write in place
    assert sorted(kv.pending_copies()) == sorted((shared[1], b) for b in last[:2])
    finish_copies(kv)
    kv.check_invariants(seqs)


def test_forks_at_a_block_boundary_copy_nothing() -> None:
    kv = KVManager(16, SIZE)
    seqs = forked(kv, 8, 2)
    for seq in seqs:
        assert kv.allocate_slots(seq, 1)
    assert kv.pending_copies() == []
    assert seqs[0].block_table[2] != seqs[1].block_table[2]


def test_a_fork_that_finds_no_block_changes_nothing() -> None:
    kv = KVManager(2, SIZE)
    seqs = forked(kv, 6, 2)
    assert not kv.allocate_slots(seqs[0], 1)
    kv.check_invariants(seqs)
    kv.free(seqs[1])
    assert kv.allocate_slots(seqs[0], 1)
    assert kv.pending_copies() == []


def test_freeing_a_sequence_drops_its_pending_copies() -> None:
    """Otherwise two copies could have the same target, when its block is handed out again."""
    kv = KVManager(4, SIZE)
    seqs = forked(kv, 6, 2)
    assert kv.allocate_slots(seqs[0], 1)
    target = seqs[0].block_table[1]
    kv.free(seqs[0])
    assert kv.pending_copies() == []
    kv.check_invariants(seqs[1:])
    other = make([50, 51, 52, 53, 54])
    admit(kv, other)
    assert target in other.block_table
    finish_copies(kv)
    kv.check_invariants([*seqs[1:], other])


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    kv = KVManager(4, SIZE)
    through(kv, list(range(12)))
    found = []
    for token in (100, 200, 300, 400):  # each takes one more of the cached blocks
        seq = make([token])
        admit(kv, seq)
        found.append(len(kv.lookup(make([*range(12), 0])).blocks))
    assert found == [3, 2, 1, 0]


def test_least_recently_used_prefix_goes_first() -> None:
    kv = KVManager(4, SIZE)
    old, new = [1] * 5, [2] * 5
    through(kv, old)
    through(kv, new)
    assert through(kv, old) == 4  # now it is the one used last
    through(kv, [3] * 9)
    assert through(kv, old) == 4
    assert through(kv, new) == 0


def test_content_that_cannot_be_trusted_is_not_found_again() -> None:
    kv = KVManager(16, SIZE)
    seq = make(list(range(14)))
    admit(kv, seq)
    compute(kv, seq)
    kv.free(seq, keep=False)
    kv.check_invariants([])
    assert len(kv.cache) == 0
    assert through(kv, list(range(14))) == 0

    held, continued = make([*range(8), 50]), make([*range(4), 60, 61, 62, 63])
    for other in (held, continued):
        admit(kv, other)
        compute(kv, other)
    kv.free(continued)
    again = make(list(range(14)))
    assert admit(kv, again) == 12
    compute(kv, again)
    kv.free(again, keep=False)
    kv.check_invariants([held])
    # Blocks 0 and 1 are in use elsewhere; what was computed after them is gone.
    assert kv.lookup(make(list(range(14)))).blocks == list(held.block_table[:2])
    assert kv.lookup(make([*range(4), 60, 61, 62, 63, 0])).partial_tokens == 0
    assert len(kv.lookup(make([*range(4), 60, 61, 62, 63, 0])).blocks) == 2


def test_dropping_the_cache_leaves_what_is_in_use() -> None:
    kv = KVManager(8, SIZE)
    through(kv, [1] * 9)
    seq = make([2] * 9)
    admit(kv, seq)
    compute(kv, seq)
    kv.drop_cached()
    kv.check_invariants([seq])
    assert kv.pool.num_evictable == 0
    kv.free(seq)
    assert through(kv, [1] * 9) == 0
    assert through(kv, [2] * 9) == 8


def test_of_equal_blocks_only_one_outlives_its_users() -> None:
    kv = KVManager(8, SIZE)
    a, b = make(list(range(9))), make(list(range(9)))
    admit(kv, a)
    admit(kv, b)
    compute(kv, a)
    compute(kv, b)
    kv.check_invariants([a, b])
    kv.free(a)
    assert kv.pool.num_evictable == 0
    kv.check_invariants([b])
    kv.free(b)
    assert kv.pool.num_evictable == 2
    kv.check_invariants([])
    assert through(kv, list(range(9))) == 8


def test_an_idle_equal_block_makes_way_for_the_one_in_use() -> None:
    kv = KVManager(8, SIZE)
    through(kv, list(range(8)))
    seq = make(list(range(8)), prompt_logprobs=0)  # computes it all again
    admit(kv, seq)
    compute(kv, seq)
    kv.check_invariants([seq])
    assert kv.pool.num_evictable == 0
    assert kv.lookup(make([*range(8), 0])).blocks == list(seq.block_table)


def test_cost_of_preemption_is_what_nobody_else_holds() -> None:
    kv = KVManager(16, SIZE)
    a = make(list(range(10)))
    admit(kv, a)
    assert kv.unshared_tokens(a) == 0  # nothing computed yet
    compute(kv, a)
    assert kv.unshared_tokens(a) == 10
    b = make([*range(8), 50, 51, 52])
    assert admit(kv, b) == 8
    compute(kv, b)
    assert kv.unshared_tokens(a) == 2
    assert kv.unshared_tokens(b) == 3
    kv.free(a)
    assert kv.unshared_tokens(b) == 11


def test_claims_name_the_blocks_that_are_being_computed() -> None:
    kv = KVManager(16, SIZE)
    a = make(list(range(12)))
    admit(kv, a)
    same, fork, other = make(list(range(13))), make([*range(4), 9, 9, 9, 9]), make([9] * 12)
    for seq, claimed in ((same, 3), (fork, 1), (other, 0)):
        kv.lookup(seq)
        assert kv.claimed_blocks(seq, 0) == claimed
    kv.advance(a, 5)
    assert kv.claimed_blocks(same, len(kv.lookup(same).blocks)) == 2
    urgent = make(list(range(12)), priority=-1)
    kv.lookup(urgent)
    assert kv.claimed_blocks(urgent, 1) == 0  # does not wait for a less urgent one
    kv.free(a)
    assert kv.claimed_blocks(same, 1) == 0
    assert not kv._claims


@pytest.mark.parametrize("damage", ["count", "pin", "record"])
def test_the_invariant_check_notices(damage: str) -> None:
    kv = KVManager(8, SIZE)
    seq = make(list(range(6)))
    admit(kv, seq)
    compute(kv, seq)
    kv.check_invariants([seq])
    if damage == "count":
        kv.pool.retain(seq.block_table[0])
    elif damage == "pin":
        kv._pins[seq.block_table[0]] = 1
    else:
        seq.num_registered_blocks = 0
    with pytest.raises(BlockAccountingError):
        kv.check_invariants([seq])
