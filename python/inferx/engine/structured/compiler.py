"""GrammarCompiler: grammars become matchers on a thread of their own, each distinct one once.

The library lets go of the interpreter's lock while it compiles, so steps go on meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher

from inferx.engine.structured.grammar import source_of
from inferx.engine.structured.native import Source, check_start, compile_source
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.structured_outputs import StructuredOutputsParams

logger = logging.getLogger("inferx.engine")

# Compiled grammars kept for the next request that brings the same one.
MAX_COMPILED = 64
# More than the validator's child has (native.CHILD_STACK_BYTES).
STACK_BYTES = 16 << 20


class GrammarCompiler:
    """``compile`` gives a future whose result is a matcher at the start of the grammar, to be copied by each
    who uses it; its exception is a ValueError that says what is wrong."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._compiled: OrderedDict[Source, Future[LLMatcher]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def compile(self, params: StructuredOutputsParams) -> Future[LLMatcher]:
        """Raises nothing: whatever is wrong is the future's exception."""
        try:
            source = source_of(params, self.vocabulary)
        except Exception as error:
            failed: Future[LLMatcher] = Future()
            failed.set_exception(ValueError(str(error)))
            return failed
        known = self._compiled.get(source)
        if known is None:
            known = self._compiled[source] = self._start(lambda: self._compile(source))
            # Whoever still waits for one that goes has the future.
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(source)
        return known

    def _start(self, work: Callable[[], LLMatcher]) -> Future[LLMatcher]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        before = threading.stack_size(STACK_BYTES)
        try:
            return self._pool.submit(work)
        finally:
            threading.stack_size(before)

    def _compile(self, source: Source) -> LLMatcher:
        try:
            matcher = compile_source(self.vocabulary.native, source)
            # Also finds the first mask, which costs the most, outside of the steps.
            check_start(matcher)
        except ValueError:
            raise
        except BaseException as error:  # the library's panics are no Exceptions
            logger.exception("compiling a grammar failed")
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return matcher
