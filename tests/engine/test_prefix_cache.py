"""PrefixCache: digests, the tree of known prefixes, partly matching blocks."""

from __future__ import annotations

import itertools
import random
from array import array

import pytest

from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.prefix_cache import PrefixCache, block_digest, root_digest

ROOT = root_digest()


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def chain(*blocks: bytes, root: bytes = ROOT) -> list[bytes]:
    digests, parent = [], root
    for tokens in blocks:
        parent = block_digest(parent, tokens)
        digests.append(parent)
    return digests


def fill(cache: PrefixCache, start: int, *blocks: bytes, root: bytes = ROOT) -> list[bytes]:
    """Record a prefix in blocks start, start + 1, ..."""
    digests = chain(*blocks, root=root)
    for i, (digest, tokens) in enumerate(zip(digests, blocks, strict=True)):
        cache.add(start + i, digest, tokens, start + i - 1 if i else None, root)
    return digests


def test_keys_are_typed_and_delimited() -> None:
    """Equal strings under different keys, and strings that only join to the same, all differ (case B09x)."""
    values = [None, "", "a", "b", "ab", "m\0", "a\x01"]
    roots = [
        root_digest(cache_salt=s, adapter=a, model_key=m) for s, a, m in itertools.product(values, repeat=3)
    ]
    assert len(set(roots)) == len(roots)


def test_any_string_can_be_a_salt() -> None:
    assert root_digest(cache_salt="\udc80") != root_digest(cache_salt="\udc81")


def test_a_digest_stands_for_the_whole_prefix() -> None:
    a, b = ids(1, 2), ids(3, 4)
    digests = {*chain(a, b), *chain(b, a), *chain(a, b, root=root_digest(cache_salt="x"))}
    assert len(digests) == 6


def test_finds_the_longest_known_prefix() -> None:
    cache = PrefixCache(8)
    a, b, c, d = ids(1, 2), ids(3, 4), ids(5, 6), ids(7, 8)
    fill(cache, 0, a, b, c)
    assert cache.match(chain(a, b, c, d), 9) == [0, 1, 2]
    assert cache.match(chain(a, b, d), 9) == [0, 1]
    assert cache.match(chain(a, b, c), 2) == [0, 1]
    assert cache.match(chain(b, c), 9) == []
    assert cache.match([], 9) == []
    assert len(cache) == 3


def test_other_keys_find_nothing() -> None:
    cache = PrefixCache(8)
    a = ids(1, 2)
    fill(cache, 0, a)
    other = root_digest(cache_salt="x")
    assert cache.match(chain(a, root=other), 1) == []
    assert cache.match_partly(other, a) == (-1, 0)
    fill(cache, 4, a, root=other)
    assert cache.match(chain(a, root=other), 1) == [4]
    assert cache.match(chain(a), 1) == [0]


@pytest.mark.parametrize("seed", range(30))
def test_the_best_partly_matching_child_is_found(seed: int) -> None:
    """Against looking at every child; the query may be shorter than a block; large and equal tokens too."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 8, 16])
    vocab = rng.choice([[1, 2], [0, 1, 255, 256, 65536, 2**31 - 1]])
    parent = ids(*range(size))
    cache = PrefixCache(64)
    (digest,) = fill(cache, 0, parent)
    children: dict[bytes, int] = {}
    for block in range(1, 40):
        tokens = ids(*rng.choices(vocab, k=size))
        if tokens not in children:
            children[tokens] = block
            cache.add(block, block_digest(digest, tokens), tokens, 0, ROOT)
    for _ in range(50):
        query = rng.choices(vocab, k=rng.randint(1, size))
        block, n = cache.match_partly(digest, ids(*query))

        def shared(tokens: bytes, query: list[int] = query) -> int:
            pairs = itertools.takewhile(lambda p: p[0] == p[1], zip(array("i", tokens), query, strict=False))
            return len(list(pairs))

        best = max(shared(tokens) for tokens in children)
        assert n == best
        if best:
            assert shared({b: t for t, b in children.items()}[block]) == best
        else:
            assert block == -1


def test_partly_matching_below_the_root() -> None:
    cache = PrefixCache(4)
    fill(cache, 0, ids(1, 2, 3, 4))
    assert cache.match_partly(ROOT, ids(1, 2, 9, 9)) == (0, 2)
    assert cache.match_partly(ROOT, ids(9, 2, 3, 4)) == (-1, 0)
    assert cache.match_partly(b"unknown", ids(1, 2)) == (-1, 0)


def test_tokens_are_compared_whole() -> None:
    """256 and 512 have three equal bytes, 1 and 257 begin alike: neither is a shared token."""
    cache = PrefixCache(4)
    fill(cache, 0, ids(1, 256))
    assert cache.match_partly(ROOT, ids(257, 256)) == (-1, 0)
    assert cache.match_partly(ROOT, ids(1, 512)) == (0, 1)


def test_equal_blocks_share_a_node_and_the_first_is_served() -> None:
    cache = PrefixCache(8)
    a, b = ids(1, 2), ids(3, 4)
    digests = fill(cache, 0, a, b)
    fill(cache, 4, a, b)
    assert len(cache) == 2
    assert cache.match(digests, 2) == [0, 1]
    cache.forget(1)
    assert cache.match(digests, 2) == [0, 5]
    cache.forget(0)
    assert cache.match(digests, 2) == [4, 5]


def test_forgetting_goes_from_the_leaves() -> None:
    cache = PrefixCache(4)
    digests = fill(cache, 0, ids(1), ids(2))
    with pytest.raises(BlockAccountingError, match="before 1 children"):
        cache.forget(0)
    cache = PrefixCache(4)
    fill(cache, 0, ids(1), ids(2))
    cache.forget(1)
    assert cache.match(digests, 2) == [0]
    cache.forget(0)
    assert len(cache) == 0
    with pytest.raises(BlockAccountingError, match="nothing is known"):
        cache.forget(0)


def test_roots_do_not_pile_up() -> None:
    cache = PrefixCache(4)
    for i in range(100):
        fill(cache, 0, ids(1), root=root_digest(cache_salt=str(i)))
        cache.forget(0)
    assert not cache._roots
    assert not cache._nodes


def test_misuse_is_an_error() -> None:
    cache = PrefixCache(4)
    fill(cache, 0, ids(1))
    with pytest.raises(BlockAccountingError, match="already recorded"):
        cache.add(0, *chain(ids(2)), ids(2), None, ROOT)
    with pytest.raises(BlockAccountingError, match="block before, 2, is not recorded"):
        cache.add(3, *chain(ids(2)), ids(2), 2, ROOT)


def test_the_invariant_check_notices_a_parent_ahead_of_its_child() -> None:
    cache = PrefixCache(4)
    fill(cache, 0, ids(1), ids(2))
    cache.check_invariants([0, 0, 0, 0], [1, 0])
    with pytest.raises(BlockAccountingError, match="I2"):
        cache.check_invariants([0, 0, 0, 0], [0, 1])
    fill(cache, 2, ids(1))
    with pytest.raises(BlockAccountingError, match="I1"):
        cache.check_invariants([0, 0, 1, 0], [1, 0])
