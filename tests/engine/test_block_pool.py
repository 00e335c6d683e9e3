"""BlockPool: every block in one place, O(1) moves, the oldest release evicted first."""

from __future__ import annotations

import random

import pytest

from inferx.engine.block_pool import BlockAccountingError, BlockPool


def test_hands_out_each_block_once_and_then_refuses() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate() for _ in range(5)) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.num_referenced == 5
    with pytest.raises(BlockAccountingError, match="none of the 5 blocks"):
        pool.allocate()


def test_a_block_is_free_after_its_last_reference() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.retain(block)
    assert pool.release(block, keep=False) is False
    assert pool.num_free == 1
    assert pool.release(block, keep=False) is True
    assert pool.num_free == 2


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.release(block, keep=False)
    with pytest.raises(BlockAccountingError, match="freed twice"):
        pool.release(block, keep=False)
    pool.check_invariants()


def test_a_blank_block_cannot_be_shared() -> None:
    pool = BlockPool(2)
    with pytest.raises(BlockAccountingError, match="blank"):
        pool.retain(0)


def test_blank_blocks_go_first_then_the_one_released_longest_ago() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, on_evict=evicted.append)
    a, b, c, d = (pool.allocate() for _ in range(4))
    for block in (b, a, c):
        pool.release(block, keep=True)
    pool.release(d, keep=False)
    assert pool.evictable_blocks() == [b, a, c]
    assert pool.num_evictable == 3
    assert pool.allocate() == d
    assert evicted == []
    assert [pool.allocate() for _ in range(3)] == [b, a, c] == evicted


def test_referencing_an_evictable_block_saves_it_and_makes_it_the_youngest() -> None:
    pool = BlockPool(3)
    a, b, c = (pool.allocate() for _ in range(3))
    for block in (a, b, c):
        pool.release(block, keep=True)
    pool.retain(a)
    assert pool.evictable_blocks() == [b, c]
    pool.release(a, keep=True)
    assert pool.evictable_blocks() == [b, c, a]


def test_discarded_blocks_are_blank() -> None:
    pool = BlockPool(3)
    a, b = pool.allocate(), pool.allocate()
    pool.release(a, keep=True)
    pool.discard(a)
    assert pool.num_evictable == 0
    assert pool.num_free == 2
    with pytest.raises(BlockAccountingError, match="not evictable"):
        pool.discard(b)


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        BlockPool(0)


@pytest.mark.parametrize("damage", ["lost", "negative", "twice"])
def test_the_invariant_check_notices(damage: str) -> None:
    pool = BlockPool(3)
    pool.allocate()
    if damage == "lost":
        pool._blank.pop()
    elif damage == "negative":
        pool.ref_counts[2] = -1
    else:
        pool._blank.append(pool._blank[0])
    with pytest.raises(BlockAccountingError):
        pool.check_invariants()


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_a_plain_list(seed: int) -> None:
    """The same random operations on a pool and on lists that are searched through."""
    rng = random.Random(seed)
    pool = BlockPool(7)
    refs = dict.fromkeys(range(7), 0)
    blank, kept = set(range(7)), []
    for _ in range(400):
        choice = rng.random()
        used = [b for b, n in refs.items() if n]
        if choice < 0.4 and (blank or kept):
            block = pool.allocate()
            if blank:
                assert block in blank
                blank.remove(block)
            else:
                assert block == kept.pop(0)
            refs[block] = 1
        elif choice < 0.55 and (used or kept):
            block = rng.choice(used + kept)
            pool.retain(block)
            refs[block] += 1
            if block in kept:
                kept.remove(block)
        elif used:
            block, keep = rng.choice(used), rng.random() < 0.6
            refs[block] -= 1
            assert pool.release(block, keep=keep) == (refs[block] == 0)
            if refs[block] == 0:
                kept.append(block) if keep else blank.add(block)
        assert pool.evictable_blocks() == kept
        assert pool.num_free == len(blank) + len(kept)
        assert pool.ref_counts == [refs[b] for b in range(7)]
        pool.check_invariants()
