"""BlockPool: who uses which KV block.  Numbers only; the memory itself belongs to the runner.

Every block is in exactly one of three places:

* referenced: ``ref_count > 0``, in that many block tables (or held as the source of a pending copy);
* evictable: unreferenced, but its content is known to the prefix cache, kept in order of release;
* blank: unreferenced and worth nothing.

so ``num_blank + num_evictable + num_referenced == num_blocks`` always, and *free* means blank or
evictable.  Each operation is O(1): blank blocks are a stack (the last one used is the warmest in the
CPU's caches), evictable ones an ordered dictionary, which is a hash table over a doubly linked list.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class BlockAccountingError(AssertionError):
    """A bug in the engine: a block freed twice, used while free, or lost.  Never a user's mistake."""


class BlockPool:
    """``num_blocks`` blocks with reference counts; evicts the block that was released longest ago.

    ``on_evict(block)`` is called before an evictable block is handed out again, so that the prefix
    cache forgets its content.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._on_evict = on_evict

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now: blank and evictable ones."""
        return len(self._blank) + len(self._evictable)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_free

    def allocate(self) -> int:
        """Hand out a block with one reference: a blank one, or else the least recently released."""
        if self._blank:
            block = self._blank.pop()
        elif self._evictable:
            block, _ = self._evictable.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(block)
        else:
            raise BlockAccountingError(f"allocate: none of the {self.num_blocks} blocks is free")
        if self.ref_counts[block]:
            raise BlockAccountingError(
                f"allocate: free block {block} has {self.ref_counts[block]} references"
            )
        self.ref_counts[block] = 1
        return block

    def retain(self, block: int) -> None:
        """Add a reference to a block that is referenced or evictable (a blank one has nothing to share)."""
        if self.ref_counts[block] == 0:
            if block not in self._evictable:
                raise BlockAccountingError(f"retain: block {block} is blank")
            del self._evictable[block]
        self.ref_counts[block] += 1

    def release(self, block: int, *, keep: bool) -> bool:
        """Drop a reference; True when it was the last.  ``keep`` makes the block evictable, not blank."""
        count = self.ref_counts[block]
        if count < 1:
            raise BlockAccountingError(f"release: block {block} has no reference (freed twice)")
        self.ref_counts[block] = count - 1
        if count > 1:
            return False
        if keep:
            self._evictable[block] = None
        else:
            self._blank.append(block)
        return True

    def discard(self, block: int) -> None:
        """Turn an evictable block into a blank one: its content is known elsewhere."""
        if block not in self._evictable:
            raise BlockAccountingError(f"discard: block {block} is not evictable")
        del self._evictable[block]
        self._blank.append(block)

    def evictable_blocks(self) -> list[int]:
        """The evictable blocks, next to be evicted first."""
        return list(self._evictable)

    def check_invariants(self) -> None:
        """Raise BlockAccountingError unless every block is in exactly one place.  O(num_blocks)."""
        seen = sorted([*self._blank, *self._evictable])
        free = [b for b, count in enumerate(self.ref_counts) if count == 0]
        if seen != free:
            raise BlockAccountingError(f"unreferenced blocks {free} differ from the free ones {seen}")
        if any(count < 0 for count in self.ref_counts):
            raise BlockAccountingError("negative reference count")
