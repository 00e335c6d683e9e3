"""The garbage collector of a process that serves for long."""

from __future__ import annotations

import gc

# Objects made between two young collections: with many streams each step makes more than the
# default of 700, and nearly all of them are freed by their reference counts.
YOUNG_OBJECTS = 20_000


def settle_heap() -> None:
    """Call once everything is loaded: what exists now is not looked at again.

    Modules, vocabularies and the like are some hundred thousand objects, and every full collection would walk
    through all of them: tens of milliseconds during which no token comes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
