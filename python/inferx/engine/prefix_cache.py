"""PrefixCache: which KV blocks hold which tokens.

A full block is known by a digest chained from its parent's, so a digest stands for the whole prefix up
to and including the block.  The chain starts at a *root* digest made of typed keys (cache salt,
adapter, model key): equal text under different keys never meets, and a salt "a" is not an adapter "a".

The known blocks form a tree of nodes, one node per digest.  Several blocks may hold the same content
(two requests computed it side by side); they hang on the same node.  Invariants:

* I1  A node has a block.  All of its blocks are referenced, or it has exactly one, unreferenced.
  (Kept by KVManager: of equal blocks only the last one released is worth keeping.)
* I2  If a block in the evictable queue belongs to node C with parent node P, then P has a block that is
  referenced or comes later in the queue.  So the queue's head is always a leaf, and evicting from the
  head evicts the least recently released leaf.

  Proof.  A sequence that holds a block of C holds a block Q of P, one position earlier in its table, and
  releases its blocks from the last to the first.  So when C's block enters the queue (at the tail), Q is
  still referenced.  Afterwards P's blocks can change in three ways: another one is added (referenced);
  one of several is released and dropped (another referenced one remains, by I1); the last one is
  released and enters the queue behind C.  In the queue it can only be referenced again or be evicted,
  and eviction takes the head, which C reaches first.

Partly matching blocks are found among the children of the last matching node: they are kept sorted by
their tokens' bytes, and of a sorted list the longest common prefix with any string is reached at one of
the two neighbours of its place.  So the search is exact in O(log children) comparisons.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence

from inferx.engine.block_pool import BlockAccountingError

TOKEN_TYPECODE = "i"
TOKEN_BYTES = array(TOKEN_TYPECODE).itemsize
# 32 bytes: finding two texts with one digest must stay out of reach, as one user's KV would serve another.
_DIGEST_SIZE = 32


def root_digest(
    *, cache_salt: str | None = None, adapter: str | None = None, model_key: str | None = None
) -> bytes:
    """The digest prefixes start from.  Each key is written with its type and length, absent ones not at all.

    ``adapter`` must name a version of the weights, not only a name that can be loaded again with others.
    """
    h = hashlib.blake2b(digest_size=_DIGEST_SIZE, person=b"inferx-root")
    for kind, value in ((b"s", cache_salt), (b"a", adapter), (b"m", model_key)):
        if value is not None:
            data = value.encode("utf-8", "surrogatepass")
            h.update(kind + len(data).to_bytes(8, "little") + data)
    return h.digest()


def block_digest(parent: bytes, tokens: bytes) -> bytes:
    """The digest of a full block: ``tokens`` are its token ids as int32 bytes."""
    return hashlib.blake2b(parent + tokens, digest_size=_DIGEST_SIZE).digest()


class Node:
    """One known prefix.  ``child_tokens`` is sorted; ``child_nodes`` runs beside it."""

    __slots__ = ("blocks", "child_nodes", "child_tokens", "digest", "parent", "tokens")

    def __init__(self, digest: bytes, parent: Node | None, tokens: bytes) -> None:
        self.digest = digest
        self.parent = parent
        self.tokens = tokens
        self.blocks: list[int] = []
        self.child_tokens: list[bytes] = []
        self.child_nodes: list[Node] = []


class PrefixCache:
    """The content index.  It keeps no reference counts: KVManager does, and upholds I1 with them."""

    def __init__(self, num_blocks: int) -> None:
        self._nodes: dict[bytes, Node] = {}
        self._roots: dict[bytes, Node] = {}
        self._node_of: list[Node | None] = [None] * num_blocks

    def __len__(self) -> int:
        """Number of distinct known blocks."""
        return len(self._nodes)

    def node_of(self, block: int) -> Node | None:
        """What is known of a block's content."""
        return self._node_of[block]

    def match(self, digests: Sequence[bytes], limit: int) -> list[int]:
        """The blocks of the longest known prefix, at most ``limit`` of them."""
        blocks = []
        nodes = self._nodes
        for i in range(min(limit, len(digests))):
            node = nodes.get(digests[i])
            if node is None:
                break
            blocks.append(node.blocks[0])
        return blocks

    def match_partly(self, parent: bytes, tokens: bytes) -> tuple[int, int]:
        """The child of ``parent`` (a digest, or a root's) that shares most leading tokens: (block, number).

        ``tokens`` are what follows the parent, at most one block of them; (-1, 0) when no child shares any.
        """
        node = self._nodes.get(parent) or self._roots.get(parent)
        best, best_len = -1, 0
        if node is None:
            return best, best_len
        place = bisect_left(node.child_tokens, tokens)
        for i in (place - 1, place):
            if 0 <= i < len(node.child_tokens):
                n = _common_tokens(node.child_tokens[i], tokens)
                if n > best_len:
                    best, best_len = node.child_nodes[i].blocks[0], n
        return best, best_len

    def add(self, block: int, digest: bytes, tokens: bytes, previous_block: int | None, root: bytes) -> Node:
        """Record that ``block`` is full and computed.  ``previous_block`` comes before it in the table.

        Returns the node, whose ``blocks`` may now hold more than this one.
        """
        if self._node_of[block] is not None:
            raise BlockAccountingError(f"add: the content of block {block} is already recorded")
        node = self._nodes.get(digest)
        if node is None:
            node = self._insert(digest, tokens, previous_block, root)
        node.blocks.append(block)
        self._node_of[block] = node
        return node

    def _insert(self, digest: bytes, tokens: bytes, previous_block: int | None, root: bytes) -> Node:
        parent: Node | None
        if previous_block is None:
            parent = self._roots.get(root)
            if parent is None:
                parent = self._roots[root] = Node(root, None, b"")
        else:
            parent = self._node_of[previous_block]
            if parent is None:
                raise BlockAccountingError(f"add: the block before, {previous_block}, is not recorded")
        node = self._nodes[digest] = Node(digest, parent, tokens)
        place = bisect_left(parent.child_tokens, tokens)
        parent.child_tokens.insert(place, tokens)
        parent.child_nodes.insert(place, node)
        return node

    def forget(self, block: int) -> None:
        """Drop what is known of a block, before it gets other content."""
        node = self._node_of[block]
        if node is None:
            raise BlockAccountingError(f"forget: nothing is known of block {block}")
        self._node_of[block] = None
        node.blocks.remove(block)
        if node.blocks:
            return
        if node.child_nodes:
            raise BlockAccountingError(f"forget: block {block} goes before {len(node.child_nodes)} children")
        del self._nodes[node.digest]
        parent = node.parent
        assert parent is not None
        place = bisect_left(parent.child_tokens, node.tokens)
        del parent.child_tokens[place], parent.child_nodes[place]
        if parent.parent is None and not parent.child_nodes:
            del self._roots[parent.digest]  # salts come and go; their roots must not pile up

    def check_invariants(self, ref_counts: Sequence[int], queue: Sequence[int]) -> None:
        """Raise BlockAccountingError unless I1 and I2 hold and the indexes agree.  For tests: O(blocks)."""
        place = {block: i for i, block in enumerate(queue)}
        for digest, node in self._nodes.items():
            counts = [ref_counts[b] for b in node.blocks]
            if not counts or (0 in counts and len(counts) > 1):
                raise BlockAccountingError(f"I1: blocks {node.blocks} of one node have {counts} references")
            parent = node.parent
            strays = [b for b in node.blocks if self._node_of[b] is not node]
            if parent is None or node.digest != digest or strays:
                raise BlockAccountingError(f"indexes disagree about blocks {node.blocks}")
            at = bisect_left(parent.child_tokens, node.tokens)
            if at == len(parent.child_nodes) or parent.child_nodes[at] is not node:
                raise BlockAccountingError(f"blocks {node.blocks} are missing among their parent's children")
            if parent.parent is not None and 0 in counts:
                ahead = place[node.blocks[0]]
                if not any(ref_counts[b] or place[b] > ahead for b in parent.blocks):
                    raise BlockAccountingError(
                        f"I2: block {node.blocks[0]} would outlive its {parent.blocks}"
                    )
        known = {b for node in self._nodes.values() for b in node.blocks}
        if known != {b for b, node in enumerate(self._node_of) if node is not None}:
            raise BlockAccountingError("the digest index and the block index know different blocks")
        if not set(queue) <= known:
            raise BlockAccountingError("an evictable block has no known content")


def _common_tokens(a: bytes, b: bytes) -> int:
    """Number of leading tokens that two int32 byte strings share."""
    end = min(len(a), len(b))
    if a[:end] == b[:end]:
        return end // TOKEN_BYTES
    n = 0
    while a[n : n + TOKEN_BYTES] == b[n : n + TOKEN_BYTES]:
        n += TOKEN_BYTES
    return n // TOKEN_BYTES
