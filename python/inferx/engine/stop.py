"""Stop strings over a growing text.

A text is complete as soon as it contains a stop string: of several, the one that is complete first
wins, whichever way the text was cut into tokens; of those complete at the same character, the longest.
An Aho-Corasick automaton (Aho and Corasick, CACM 18, 1975) reads every character once; its state is the
longest end of the text that begins a stop string, which is just what must be held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class _Node:
    __slots__ = ("children", "fail", "held", "match")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.fail: _Node | None = None
        self.match: str | None = None  # longest stop string that ends here
        self.held = 0  # longest end of the text that may still grow into a stop string


class StopMatcher:
    """Looks for stop strings in one sample's text.

    ``include_in_output``: the text ends behind the stop string instead of before it, and nothing is
    held back.  After a match ``matched`` is set and all further text is dropped.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._include = include_in_output
        self._held = ""
        self._root = self._state = _build(stops)

    def push(self, text: str, search: bool = True) -> str:
        """Take more text; return what is certain to belong to the answer.

        With ``search`` false (min_tokens not reached) a stop string that is completed by this text is
        let through; one that merely begins in it can still match later.
        """
        if self.matched is not None:
            return ""
        state = self._state
        for i, char in enumerate(text):
            state = self._step(state, char)
            if state.match is not None and search:
                self.matched = state.match
                text = self._held + text[: i + 1]
                self._held = ""
                return text if self._include else text[: len(text) - len(state.match)]
        self._state = state
        if self._include:
            return text
        text = self._held + text
        split = len(text) - state.held
        self._held = text[split:]
        return text[:split]

    def flush(self) -> str:
        """What was held back for a stop string that did not come."""
        held, self._held = self._held, ""
        self._state = self._root
        return held

    def _step(self, state: _Node, char: str) -> _Node:
        node: _Node | None = state
        while node is not None:
            child = node.children.get(char)
            if child is not None:
                return child
            node = node.fail
        return self._root


def _build(stops: Sequence[str]) -> _Node:
    root = _Node()
    for stop in stops:
        if not stop:
            raise ValueError("stop strings must not be empty")
        node = root
        for char in stop:
            node = node.children.setdefault(char, _Node())
        node.match = stop
    # Breadth first, so that a node's shorter ends are complete before it.
    queue = deque([(root, 0)])
    while queue:
        node, depth = queue.popleft()
        for char, child in node.children.items():
            fail = node.fail
            while fail is not None and char not in fail.children:
                fail = fail.fail
            child.fail = root if fail is None else fail.children[char]
            if child.match is None:
                child.match = child.fail.match
            child.held = depth + 1 if child.children else child.fail.held
            queue.append((child, depth + 1))
    return root
