"""StructuredRequests: grammars and matchers of the engine's requests, and what tokens mean to them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass

from llguidance import LLMatcher

from inferx.engine.scheduler_output import SampleError
from inferx.engine.structured.compiler import GrammarCompiler
from inferx.engine.structured.matcher import Matcher, MatcherError
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.engine.token_run import TokenRun
from inferx.sampling_params import SamplingParams


@dataclass(slots=True)
class _Request:
    params: SamplingParams
    grammar: Future[LLMatcher]


class StructuredRequests:
    """Requests that have a grammar, from ``add`` to ``discard``."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary], *, jump_ahead: bool) -> None:
        """make_vocabulary: called when the first one comes."""
        self._make_vocabulary = make_vocabulary
        self._jump_ahead = jump_ahead
        self._compiler: GrammarCompiler | None = None
        self._requests: dict[str, _Request] = {}
        self._compiling: list[str] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request_id: str, params: SamplingParams) -> None:
        """Start compiling the request's grammar."""
        assert params.structured_outputs is not None
        if self._compiler is None:
            self._compiler = GrammarCompiler(self._make_vocabulary())
        grammar = self._compiler.compile(params.structured_outputs)
        self._requests[request_id] = _Request(params, grammar)
        self._compiling.append(request_id)

    def discard(self, request_id: str) -> None:
        """Forget a request, if it is one of these."""
        self._requests.pop(request_id, None)

    def take_compiled(self) -> list[tuple[str, str | None]]:
        """Requests whose grammar has been compiled since the last call; with what is wrong with it, if it is
        that."""
        if not self._compiling:
            return []
        alive = [name for name in self._compiling if name in self._requests]
        done = [name for name in alive if self._requests[name].grammar.done()]
        self._compiling = [name for name in alive if name not in done]
        return [(name, self._fault(name)) for name in done]

    def wait(self, seconds: float) -> None:
        """Until some grammar has been compiled, but no longer than that."""
        grammars = [self._requests[name].grammar for name in self._compiling if name in self._requests]
        if grammars:
            wait(grammars, seconds, return_when="FIRST_COMPLETED")

    def _fault(self, request_id: str) -> str | None:
        error = self._requests[request_id].grammar.exception()
        return None if error is None else f"structured_outputs: {error}"

    def new_matcher(self, request_id: str) -> Matcher | None:
        """At the start of the request's grammar; None when it has none, or that is not compiled yet."""
        request = self._requests.get(request_id)
        if request is None or not request.grammar.done() or request.grammar.exception() is not None:
            return None
        assert self._compiler is not None
        native = request.grammar.result().deep_copy()
        return Matcher(native, self._compiler.vocabulary, request.params, jump_ahead=self._jump_ahead)


def follow(matcher: Matcher, token_id: int) -> TokenRun | SampleError:
    """What a sampled token brings the sample: itself and what is forced behind it, or why it has to end."""
    try:
        taken = matcher.take(token_id)
    except MatcherError as error:
        return SampleError(str(error))
    except Exception as error:  # whatever it is, it is this sample's alone
        return SampleError(f"the grammar failed: {type(error).__name__}: {error}")
    return TokenRun(taken.token_ids, taken.complete)
