"""GrammarValidator: tries a grammar in a child process, so that no grammar can harm whoever asks.

The child (``native`` as a script) has bounded memory and stack, and a time limit for each grammar; one that
exceeds these, or kills the child, is refused like one that is wrong.  The next grammar gets a new child.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import select
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferx.engine.scheduler import QueueFullError
from inferx.engine.structured import native
from inferx.engine.structured.grammar import source_of
from inferx.engine.structured.native import Source
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.errors import InvalidRequestError
from inferx.structured_outputs import PARAM, StructuredOutputsParams

logger = logging.getLogger("inferx.engine")

# For one grammar.
COMPILE_SECONDS = 2.0
# For the child to start; and for a grammar to get its turn behind others.
START_SECONDS = 20.0
TURN_SECONDS = 4.0
# Verdicts kept, by digest.
MAX_VERDICTS = 4096
# How long a grammar stays refused that took too long or ended its child: a busy machine, or one short of
# memory, may have been at fault.
DOUBT_SECONDS = 60.0
NUM_CHILDREN = 2


class GrammarValidator:
    """``check`` may be called from any thread.  Children start when they are first needed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._lock = threading.Lock()
        self._children = [_Child(vocabulary) for _ in range(NUM_CHILDREN)]
        self._idle = self._children[:]
        self._turn = threading.Semaphore(NUM_CHILDREN)

    def check(self, params: StructuredOutputsParams) -> None:
        """Raise InvalidRequestError when no answer could follow ``params``, or only at too high a cost;
        QueueFullError when others' grammars take all the time."""
        params.validate()
        self._check_source(source_of(params, self.vocabulary))

    def known(self, params: StructuredOutputsParams) -> bool:
        """Like ``check``, which then costs nothing; False when it has yet to be tried."""
        params.validate()
        verdict = self._look_up(_digest(source_of(params, self.vocabulary)))
        if verdict is None:
            return False
        _raise_on(verdict)
        return True

    def close(self) -> None:
        """End the children.  A later check starts new ones."""
        for child in self._children:
            child.kill()

    def _check_source(self, source: Source) -> None:
        digest = _digest(source)
        verdict = self._look_up(digest)
        if verdict is None:
            verdict = self._try(source, digest)
        _raise_on(verdict)

    def _look_up(self, digest: bytes) -> str | None:
        with self._lock:
            verdict = self._verdicts.get(digest)
            if verdict is None or verdict.until <= time.monotonic():
                return None
            self._verdicts.move_to_end(digest)
            return verdict.fault

    def _try(self, source: Source, digest: bytes) -> str:
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise QueueFullError("too many grammars are being checked; try again later")
        try:
            verdict = self._look_up(digest)  # someone else may have brought the same one
            if verdict is not None:
                return verdict
            with self._lock:
                child = self._idle.pop()
            try:
                found = child.ask(source)
            finally:
                with self._lock:
                    self._idle.append(child)
        finally:
            self._turn.release()
        with self._lock:
            self._verdicts[digest] = found
            while len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        return found.fault


def _digest(source: Source) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(source)).digest()


def _raise_on(verdict: str) -> None:
    if verdict:
        raise InvalidRequestError(f"{PARAM}: {verdict}", PARAM)


@dataclass(frozen=True)
class _Verdict:
    """fault: empty when the grammar is fine.  until: on the monotonic clock."""

    fault: str
    until: float = math.inf


class _Gone(Exception):
    """The child has ended, or does not answer."""


class _Child:
    """One process.  Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, source: Source) -> _Verdict:
        """What is wrong with a grammar."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            # Its first answer comes after the start.
            return _Verdict(self._exchange(msgspec.msgpack.encode(source), COMPILE_SECONDS))
        except _Gone as gone:
            logger.warning("a grammar was refused as its trial failed: %s", gone)
            self.kill()
            return _Verdict(str(gone), time.monotonic() + DOUBT_SECONDS)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _start(self) -> None:
        self.kill()
        # Isolated: nothing of the environment, of this directory or of the user's site is imported.
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(native.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the front end
        )
        vocabulary = self._vocabulary
        tokens = {"tokens": vocabulary.tokens, "special": vocabulary.special, "eos": vocabulary.end_ids}
        try:
            self._exchange(msgspec.msgpack.encode(tokens), START_SECONDS)
        except _Gone as gone:
            self.kill()
            raise RuntimeError(f"the process that checks grammars does not start: {gone}") from None

    def _exchange(self, frame: bytes, seconds: float) -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        try:
            process.stdin.write(struct.pack("<I", len(frame)) + frame)
        except OSError:
            raise _Gone("checking it ended the process that did so") from None
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack("<I", data[:4])[0]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise _Gone(f"it takes more than {seconds:g} s to compile")
            piece = process.stdout.read(1 << 16)
            if not piece:
                raise _Gone("checking it ended the process that did so")
            data += piece
        return msgspec.msgpack.decode(data[4:], type=str)
