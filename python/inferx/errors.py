"""Every error inferx raises on purpose.

A caller that passes something wrong gets a message that names the argument, what was expected and
what came.  Nothing here imports torch, so the pure parts of the engine may use it.
"""

from __future__ import annotations


class InferxError(Exception):
    """Base of all errors that inferx raises on purpose."""


class LoadError(InferxError):
    """A checkpoint cannot be loaded.  The message names the file and, where there is one, the tensor."""


class MemoryBudgetError(LoadError):
    """Weights and the smallest useful KV cache do not fit.  The message carries the memory table."""


class InvalidRequestError(InferxError, ValueError):
    """A request asks for something impossible or malformed.

    ``param`` is the name of the offending field (OpenAI's ``error.param``), or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineDeadError(InferxError):
    """The engine process has ended; no request can be served until it is restarted."""


class EngineShutDownError(EngineDeadError):
    """The engine was shut down on purpose while the request ran."""


class RequestFailedError(InferxError):
    """One request failed inside the engine (for example non-finite logits).  Others are untouched."""


class ContradictionError(RequestFailedError):
    """What the request asks for leaves no token to go on with, which showed while it ran."""


# How messages about such requests begin; they come from the engine process as text.
CANNOT_GO_ON = "the grammar cannot go on"
NO_LEGAL_TOKEN = "no legal token is left"


def request_failure(message: str) -> RequestFailedError:
    """The error that a failed request ends with."""
    at_fault = message.startswith((CANNOT_GO_ON, NO_LEGAL_TOKEN))
    return ContradictionError(message) if at_fault else RequestFailedError(message)
