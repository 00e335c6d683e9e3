"""KVManager: block tables of sequences, prefix look-up, copy on write.

Rules:

* A block is written only by a sequence that alone holds it, and never after it is full and recorded in
  the prefix cache.  A sequence that wants to write into a block it shares (after a fork) gets a copy.
* Tables are append-only, except that copy on write replaces the last entry.
* A block is recorded once it is full and its step's results are in (``advance``).  So what a sequence
  reads in blocks it shares was complete before any step in flight was planned, and a step that failed
  can be run again, whatever was planned behind it.
* Copies (source, destination) are collected while a step is planned (``take_copies``) and run before its
  forward pass, all at once.  Until ``finish_copies``, when the step's results are in, a source keeps one
  extra reference, so that it is neither handed out nor evicted; destinations are fresh blocks, so no
  block is both.
* At least the last token of a sequence is always computed: cached blocks hold K and V, not logits.
* A prompt is taken in with all of its blocks or not at all; only decoding asks for more blocks later.
  A prefill under way can therefore never get stuck half-way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from inferx.engine.block_pool import BlockAccountingError, BlockPool
from inferx.engine.prefix_cache import PrefixCache, block_digest
from inferx.engine.request import Sequence


@dataclass(slots=True)
class PrefixMatch:
    """What the cache holds of a sequence: full blocks, then ``partial_tokens`` leading tokens of one more
    block (-1 when there is none), which has to be copied."""

    blocks: list[int]
    partial_block: int = -1
    partial_tokens: int = 0


class KVManager:
    """See the module's docstring.  ``pool`` and ``cache`` may be read by anyone, changed only here."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.caching = enable_prefix_caching
        self.cache = PrefixCache(num_blocks)
        self.pool = BlockPool(num_blocks, on_evict=self.cache.forget)
        self._copies: dict[int, int] = {}  # destination -> source, of the step that is being planned
        self._copies_in_flight: deque[dict[int, int]] = deque()  # of the planned steps, the oldest first
        self._pins: dict[int, int] = {}  # source -> references held for copies
        self._claims: dict[bytes, Sequence] = {}  # digest -> the running sequence that will compute it

    # Looking up

    def lookup(self, seq: Sequence) -> PrefixMatch:
        """The longest cached prefix of ``seq``, leaving at least its last token to compute."""
        if not self.caching or self._needs_all_logits(seq):
            return PrefixMatch([])
        size = self.block_size
        self._hash_blocks(seq)
        limit = seq.num_tokens - 1
        match = PrefixMatch(self.cache.match(seq.block_hashes, limit // size))
        done = len(match.blocks)
        parent = seq.block_hashes[done - 1] if done else seq.request.root
        rest = seq.token_ids[done * size : min((done + 1) * size, limit)].tobytes()
        if rest:
            match.partial_block, match.partial_tokens = self.cache.match_partly(parent, rest)
        return match

    def num_tokens(self, match: PrefixMatch) -> int:
        """Tokens a match saves."""
        return len(match.blocks) * self.block_size + match.partial_tokens

    def claimed_blocks(self, seq: Sequence, start: int) -> int:
        """How many of ``seq``'s full blocks, from ``start`` on, are now being computed by another sequence.

        Only sequences of at least the same priority count: waiting for a less urgent one, which more
        urgent ones may hold up, would turn the priorities round.
        """
        if not self.caching or self._needs_all_logits(seq):
            return 0
        end = start
        while end < len(seq.block_hashes):
            owner = self._claims.get(seq.block_hashes[end])
            if owner is None or owner.order[0] > seq.order[0]:
                break
            end += 1
        return end - start

    def is_claimed(self, digest: bytes) -> bool:
        return digest in self._claims

    @staticmethod
    def _needs_all_logits(seq: Sequence) -> bool:
        # Prompt log-probabilities need the logits of every prompt position, a mean the hidden states, which
        # the cache does not hold.
        request = seq.request.engine_request
        if request.pooling is not None and request.pooling.pooling == "mean":
            return True
        return request.sampling_params.prompt_logprobs is not None and seq.num_output_tokens == 0

    def _hash_blocks(self, seq: Sequence) -> None:
        size = self.block_size
        hashes = seq.block_hashes
        parent = hashes[-1] if hashes else seq.request.root
        known = len(seq.token_ids) - (seq.token_source is not None)
        for i in range(len(hashes), known // size):
            parent = block_digest(parent, seq.token_ids[i * size : (i + 1) * size].tobytes())
            hashes.append(parent)

    # Taking and giving blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def spare_blocks(self, seq: Sequence, match: PrefixMatch) -> int:
        """How many blocks would be left free if ``seq`` got its own; negative when it cannot."""
        pool = self.pool
        idle = sum(1 for b in match.blocks if pool.ref_counts[b] == 0)
        return pool.num_free - idle - (self.num_blocks_for(seq.num_tokens) - len(match.blocks))

    def admit(self, seq: Sequence, match: PrefixMatch, headroom: int = 0) -> bool:
        """Give ``seq`` blocks for all its known tokens, those of ``match`` first; ``headroom`` stay free.

        False, and nothing has changed, when there are not enough.  A partial match that does not fit is
        dropped.  Sets ``num_computed_tokens`` to what the match provides.
        """
        if seq.block_table:
            raise BlockAccountingError(f"admit: {seq!r} holds blocks already")
        pool = self.pool
        shared = len(match.blocks)
        fresh = self.num_blocks_for(seq.num_tokens) - shared
        spare = self.spare_blocks(seq, match) - headroom
        if spare < 0:
            return False
        if match.partial_tokens and spare == 0 and pool.ref_counts[match.partial_block] == 0:
            match.partial_block, match.partial_tokens = -1, 0
        for block in match.blocks:
            pool.retain(block)
        if match.partial_tokens:
            self._pin(match.partial_block)
        seq.block_table.extend(match.blocks)
        for _ in range(fresh):
            seq.block_table.append(pool.allocate())
        if match.partial_tokens:
            self._copies[seq.block_table[shared]] = match.partial_block
        seq.num_computed_tokens = self.num_tokens(match)
        seq.num_registered_blocks = shared
        seq.writable_end = len(seq.block_table) * self.block_size
        self._claim(seq)
        return True

    def allocate_slots(self, seq: Sequence, num_new_tokens: int) -> bool:
        """Make the next ``num_new_tokens`` positions writable: new blocks, and a copy of a shared last one.

        False, and nothing has changed, when there are not enough blocks.
        """
        start = seq.num_computed_tokens
        if start + num_new_tokens <= seq.writable_end:
            return True
        size, table, pool = self.block_size, seq.block_table, self.pool
        first = start // size
        copy = first < len(table) and self._is_shared(table[first])
        fresh = max(0, self.num_blocks_for(start + num_new_tokens) - len(table))
        if fresh + copy > pool.num_free:
            return False
        if copy:
            self._copy_on_write(seq, first)
        for _ in range(fresh):
            table.append(pool.allocate())
        seq.writable_end = len(table) * size
        return True

    def _is_shared(self, block: int) -> bool:
        # A pending copy's source has an extra reference that no table stands behind.
        count = self.pool.ref_counts[block]
        return count > 1 and count - self._pins.get(block, 0) > 1

    def _copy_on_write(self, seq: Sequence, i: int) -> None:
        source = seq.block_table[i]
        target = self.pool.allocate()
        self._pin(source)
        self._release(source)
        seq.block_table[i] = target
        self._copies[target] = source

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """``child`` continues from ``parent``: it shares all its blocks, the partly filled last one too."""
        for block in parent.block_table:
            self.pool.retain(block)
        child.block_table = parent.block_table[:]
        child.token_ids = parent.token_ids[:]
        child.block_hashes = parent.block_hashes[:]
        child.num_registered_blocks = parent.num_registered_blocks
        child.num_computed_tokens = parent.num_computed_tokens
        parent.writable_end = child.writable_end = parent.num_computed_tokens

    def free(self, seq: Sequence, *, keep: bool = True) -> None:
        """Take all blocks back, the last one first (I2 of the prefix cache), and let go of copies to them.

        Steps in flight may still read and write them: they run before any step planned from now on.

        ``keep=False``: the content cannot be trusted, so what nobody else holds or continues is forgotten.
        """
        for digest in seq.block_hashes[seq.num_registered_blocks :]:
            if self._claims.get(digest) is seq:
                del self._claims[digest]
        for block in reversed(seq.block_table):
            if self._pins and self.pool.ref_counts[block] == 1:
                self._drop_copy(block)  # before its source's parent, which is further down in this table
            node = self.cache.node_of(block)
            if not keep and node is not None and not node.child_nodes and self.pool.ref_counts[block] == 1:
                self.cache.forget(block)
            self._release(block)
        seq.block_table = type(seq.block_table)("i")
        seq.num_computed_tokens = seq.num_registered_blocks = seq.writable_end = 0

    def drop_cached(self) -> None:
        """Forget all blocks that nobody holds, in the order in which they would be evicted (I2)."""
        for block in self.pool.evictable_blocks():
            self.cache.forget(block)
            self.pool.discard(block)

    def _release(self, block: int) -> None:
        pool, node = self.pool, self.cache.node_of(block)
        if node is None:
            pool.release(block, keep=False)
        elif pool.ref_counts[block] > 1 or len(node.blocks) == 1:
            pool.release(block, keep=True)
        else:  # another block has the same content and is in use: this one is worth nothing
            self.cache.forget(block)
            pool.release(block, keep=False)

    # Copies

    @property
    def has_pins(self) -> bool:
        """Some blocks are held only until the copies in flight are finished."""
        return bool(self._pins)

    def pending_copies(self) -> list[tuple[int, int]]:
        """(source, destination) of the copies for the step that is being planned, in any order."""
        return [(source, target) for target, source in self._copies.items()]

    def take_copies(self) -> list[tuple[int, int]]:
        """``pending_copies``, now that the step is planned; each call is answered by a ``finish_copies``."""
        copies = self.pending_copies()
        self._copies_in_flight.append(self._copies)
        self._copies = {}
        return copies

    def finish_copies(self) -> None:
        """The oldest step in flight is over: let go of its copies' sources."""
        for source in self._copies_in_flight.popleft().values():
            self._unpin(source)

    def _drop_copy(self, target: int) -> None:
        for copies in (self._copies, *self._copies_in_flight):
            source = copies.pop(target, None)
            if source is not None:
                self._unpin(source)

    def _pin(self, block: int) -> None:
        self.pool.retain(block)
        self._pins[block] = self._pins.get(block, 0) + 1

    def _unpin(self, block: int) -> None:
        if self._pins[block] == 1:
            del self._pins[block]
        else:
            self._pins[block] -= 1
        self._release(block)

    # Recording computed blocks

    def _claim(self, seq: Sequence) -> None:
        if not self.caching:
            return
        self._hash_blocks(seq)
        for digest in seq.block_hashes[seq.num_registered_blocks :]:
            self._claims.setdefault(digest, seq)

    def advance(self, seq: Sequence, end: int) -> None:
        """The tokens before ``end`` have been computed; record the blocks that became full."""
        seq.num_computed_tokens = end
        full = end // self.block_size
        if full > seq.num_registered_blocks and self.caching:
            self._hash_blocks(seq)
            for i in range(seq.num_registered_blocks, full):
                self._record(seq, i)
            seq.num_registered_blocks = full

    def _record(self, seq: Sequence, i: int) -> None:
        digest, size, table = seq.block_hashes[i], self.block_size, seq.block_table
        tokens = seq.token_ids[i * size : (i + 1) * size].tobytes()
        previous = table[i - 1] if i else None
        node = self.cache.add(table[i], digest, tokens, previous, seq.request.root)
        twin = node.blocks[0]
        if self.pool.ref_counts[twin] == 0:  # keep invariant I1: ours is in use, the idle twin goes
            self.cache.forget(twin)
            self.pool.discard(twin)
        if self._claims.get(digest) is seq:
            del self._claims[digest]

    # For the scheduler's choices, and for tests

    def unshared_tokens(self, seq: Sequence) -> int:
        """Computed tokens of ``seq`` in blocks that no other sequence holds: what preempting it may cost.

        Sequences share leading blocks, so the boundary is found by bisection.  (Two requests that computed
        equal blocks side by side can break that order; the figure is then an estimate.)
        """
        table, refs = seq.block_table, self.pool.ref_counts
        low, high = 0, len(table)
        while low < high:
            mid = (low + high) // 2
            if refs[table[mid]] > 1:
                low = mid + 1
            else:
                high = mid
        return max(0, seq.num_computed_tokens - low * self.block_size)

    def check_invariants(self, holders: list[Sequence], confirmed: Mapping[int, int] | None = None) -> None:
        """Raise BlockAccountingError unless the counts agree with the tables of ``holders``.  O(pool).

        confirmed: id of a sequence -> its computed tokens without those of steps in flight.
        """
        pool = self.pool
        pool.check_invariants()
        self.cache.check_invariants(pool.ref_counts, pool.evictable_blocks())
        counts = [0] * pool.num_blocks
        for seq in holders:
            if len(set(seq.block_table)) != len(seq.block_table):
                raise BlockAccountingError(f"{seq!r} holds a block twice")
            for block in seq.block_table:
                counts[block] += 1
        pins: dict[int, int] = {}
        copies = [copy for step in (self._copies, *self._copies_in_flight) for copy in step.items()]
        for _, source in copies:
            counts[source] += 1
            pins[source] = pins.get(source, 0) + 1
        if counts != pool.ref_counts:
            wrong = [(b, pool.ref_counts[b], n) for b, n in enumerate(counts) if pool.ref_counts[b] != n]
            raise BlockAccountingError(f"(block, reference count, holders) disagree: {wrong}")
        targets = {target for target, _ in copies}
        if pins != self._pins or pins.keys() & targets or len(targets) < len(copies):
            raise BlockAccountingError(f"copies {copies} disagree with their pins {self._pins}")
        self._check_sequences(holders, confirmed or {})

    def _check_sequences(self, holders: list[Sequence], confirmed: Mapping[int, int]) -> None:
        running = {id(seq) for seq in holders}
        if any(id(seq) not in running for seq in self._claims.values()):
            raise BlockAccountingError("a sequence that does not run claims a block")
        for seq in holders:
            if len(seq.block_table) * self.block_size < seq.num_computed_tokens:
                raise BlockAccountingError(f"{seq!r} has more computed tokens than its blocks hold")
            full = confirmed.get(id(seq), seq.num_computed_tokens) // self.block_size
            if self.caching and seq.num_registered_blocks != full:
                raise BlockAccountingError(f"{seq!r} recorded {seq.num_registered_blocks} blocks")
            for i in range(full, len(seq.block_table)):
                if self.cache.node_of(seq.block_table[i]) is not None:
                    raise BlockAccountingError(f"{seq!r} would write into a block others may look up")
