"""From the engine's messages to answers: text, stop strings, log-probabilities, the end of a request.

Lives in the front end.  The engine knows token ids only: stop token ids, end tokens and lengths are its
business; stop strings are found here, and the engine is told to finish that sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferx.engine.detokenizer import Detokenizer, TokenizerLike, TokenTexts
from inferx.engine.protocol import EngineOutput, EngineRequest, TokenLogprobs
from inferx.engine.stop import StopMatcher
from inferx.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from inferx.sampling_params import SamplingParams


@dataclass
class ProcessedOutput:
    """What one engine message came to.

    ``request_output``: the delta (or, for a request added with ``cumulative``, the whole answer so far);
    None when there is nothing new.  ``to_finish``: indices of samples a stop string has completed; the
    engine must finish them and answer with their last message.  ``error``: the request failed; it is
    forgotten here, its other samples are for the caller to abort.
    """

    request_output: RequestOutput | None = None
    to_finish: list[int] = field(default_factory=list)
    error: str | None = None


class OutputProcessor:
    """State of all running requests of one tokenizer.

    A sample ends with the engine's message that has a finish_reason, also after a stop string: that
    message brings the metrics, and says that the sample's blocks are free.  Its tokens, and whatever else
    arrived after the match, are dropped.
    """

    def __init__(self, tokenizer: TokenizerLike, texts: TokenTexts | None = None) -> None:
        """``texts``: of this tokenizer, when there is one already; making it reads the vocabulary."""
        self._texts = texts or TokenTexts(tokenizer)
        self._requests: dict[str, _Request] = {}

    def add_request(
        self, request: EngineRequest, *, prompt: str | None = None, cumulative: bool = False
    ) -> None:
        """Expect messages for ``request``; ValueError when its id is in use."""
        if request.request_id in self._requests:
            raise ValueError(f"request_id {request.request_id!r} is already in use")
        self._requests[request.request_id] = _Request(request, self._texts, prompt, cumulative)

    def has_request(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def abort(self, request_id: str) -> None:
        """Forget a request; messages still to come for it are ignored.  Unknown ids are fine."""
        self._requests.pop(request_id, None)

    def process(self, output: EngineOutput) -> ProcessedOutput:
        """Take one message; those for unknown or finished requests and samples come to nothing."""
        request = self._requests.get(output.request_id)
        if request is None:
            return ProcessedOutput()
        if output.finish_reason == "error":
            del self._requests[output.request_id]
            return ProcessedOutput(error=output.error or "the request failed inside the engine")
        result = request.process(output)
        if request.finished:
            del self._requests[output.request_id]
        return result


class _Request:
    def __init__(
        self, request: EngineRequest, texts: TokenTexts, prompt: str | None, cumulative: bool
    ) -> None:
        self._id = request.request_id
        self._prompt = prompt
        self._prompt_token_ids = request.prompt_token_ids
        self._texts = texts
        n = request.sampling_params.n
        self._samples = [_Sample(i, request, texts) for i in range(n)]
        self._running = n
        self._sent_prompt_logprobs = False
        self._whole: RequestOutput | None = None
        if cumulative:
            self._whole = RequestOutput.empty(self._id, prompt, self._prompt_token_ids, n)

    @property
    def finished(self) -> bool:
        return self._running == 0

    def process(self, output: EngineOutput) -> ProcessedOutput:
        sample = self._samples[output.index]
        if sample.is_simple and output.finish_reason is None and self._whole is None:
            # By far the most messages: one token, and nothing else to look at.
            completion = CompletionOutput(
                sample.index, sample.push(output.new_token_ids), output.new_token_ids
            )
            return ProcessedOutput(
                RequestOutput(
                    self._id,
                    self._prompt,
                    self._prompt_token_ids,
                    [completion],
                    num_cached_tokens=output.num_cached_tokens,
                )
            )
        if sample.finished:
            return ProcessedOutput()
        stopped_before = sample.stopped
        completion = sample.process(output)
        if sample.finished:
            self._running -= 1
        elif stopped_before:
            return ProcessedOutput()
        delta = RequestOutput(
            request_id=self._id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[completion],
            finished=self.finished,
            prompt_logprobs=self._prompt_logprobs(output),
            metrics=completion.metrics,
            num_cached_tokens=output.num_cached_tokens,
            embedding=output.embedding,
        )
        to_finish = [output.index] if sample.stopped and not stopped_before and not sample.finished else []
        if self._whole is None:
            return ProcessedOutput(delta, to_finish)
        self._whole.add(delta)
        return ProcessedOutput(self._whole.copy(), to_finish)

    def _prompt_logprobs(self, output: EngineOutput) -> list[PositionLogprobs | None] | None:
        if output.prompt_logprobs is None or self._sent_prompt_logprobs:
            return None
        self._sent_prompt_logprobs = True
        return [None if entry is None else _position(entry, self._texts) for entry in output.prompt_logprobs]


class _Sample:
    """One sample's text and ending.  ``stopped``: a stop string matched; ``finished``: the engine said so."""

    def __init__(self, index: int, request: EngineRequest, texts: TokenTexts) -> None:
        params = request.sampling_params
        self.index = index
        self.stopped = False
        self.finished = False
        self._params: SamplingParams = params
        self._texts = texts
        self._num_tokens = 0
        self._cumulative_logprob = 0.0
        self._detokenizer: Detokenizer | None = None
        self._stops: StopMatcher | None = None
        if params.detokenize:
            self._detokenizer = Detokenizer(
                texts,
                skip_special_tokens=params.skip_special_tokens,
                prompt_token_ids=request.prompt_token_ids,
                shown_special_token_ids=params.shown_special_token_ids,
            )
            if params.stop:
                self._stops = StopMatcher(params.stop, params.include_stop_str_in_output)
        self._plain = self._stops is None and params.logprobs is None and params.prompt_logprobs is None

    @property
    def is_simple(self) -> bool:
        """A token that ends nothing only adds its text."""
        return self._plain and not self.finished

    def push(self, token_ids: list[int]) -> str:
        """The text of tokens of a simple sample."""
        self._num_tokens += len(token_ids)
        detokenizer = self._detokenizer
        if detokenizer is None:
            return ""
        if len(token_ids) == 1:
            return detokenizer.push(token_ids[0])
        return "".join(map(detokenizer.push, token_ids))

    def process(self, output: EngineOutput) -> CompletionOutput:
        """The delta that ``output`` means for this sample."""
        delta = CompletionOutput(self.index)
        wants_logprobs = self._params.logprobs is not None
        if wants_logprobs:
            delta.logprobs = []
        if not self.stopped:
            self._add_tokens(output, delta)
        if output.finish_reason is not None:
            self.finished = True
            delta.finish_reason = "stop" if self.stopped else output.finish_reason
            delta.stop_reason = output.stop_reason
            delta.metrics = output.metrics
            if self.stopped:
                assert self._stops is not None
                delta.stop_reason = self._stops.matched
        if wants_logprobs:
            delta.cumulative_logprob = self._cumulative_logprob
        return delta

    def _add_tokens(self, output: EngineOutput, delta: CompletionOutput) -> None:
        tokens = output.new_token_ids
        # The token that ends the text (end token or stop token id) has no text itself.
        silent = len(tokens)
        ends_outside = output.finish_reason == "stop" and not output.ends_in_text
        if ends_outside and not self._params.include_stop_str_in_output:
            silent -= 1
        texts = []
        for i, token in enumerate(tokens):
            self._num_tokens += 1
            delta.token_ids.append(token)
            if delta.logprobs is not None and output.logprobs is not None:
                entry = output.logprobs[i]
                delta.logprobs.append(_position(entry, self._texts))
                self._cumulative_logprob += entry.logprobs[0]
            if i < silent and self._detokenizer is not None:
                texts.append(self._search(self._detokenizer.push(token)))
            if self.stopped:
                break
        if output.finish_reason is not None and not self.stopped and self._detokenizer is not None:
            texts.append(self._search(self._detokenizer.flush()))
            if self._stops is not None:
                texts.append(self._stops.flush())
        delta.text = "".join(texts)

    def _search(self, text: str) -> str:
        """What of new text belongs to the answer for certain."""
        if self._stops is None:
            return text
        text = self._stops.push(text, search=self._num_tokens > self._params.min_tokens)
        self.stopped = self._stops.matched is not None
        return text


def _position(entry: TokenLogprobs, texts: TokenTexts) -> PositionLogprobs:
    return PositionLogprobs(entry.token_ids, entry.logprobs, entry.rank, texts.name)
