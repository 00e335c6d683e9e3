"""PoolingParams: how a prompt's hidden states become one vector."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from inferx.errors import InvalidRequestError

Pooling = Literal["last", "mean"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
DEFAULT_POOLING: Pooling = "last"


class PoolingParams(msgspec.Struct, kw_only=True, frozen=True):
    """An embedding is made of the hidden states behind the final norm.

    pooling: ``last`` takes the last token's, which models trained for embeddings with a decoder's
    architecture expect; ``mean`` the mean over all tokens.
    dimensions: keep the first ones only; None keeps all.
    normalize: to length 1, after ``dimensions``.
    """

    pooling: Pooling = DEFAULT_POOLING
    dimensions: int | None = None
    normalize: bool = True

    def validate(self, hidden_size: int) -> None:
        """Raise InvalidRequestError naming the first field that is wrong.  hidden_size: of the model."""
        if self.pooling not in POOLINGS:
            raise InvalidRequestError(
                f"pooling must be {' or '.join(POOLINGS)}, got {str(self.pooling)[:40]!r}", "pooling"
            )
        if type(self.normalize) is not bool:
            raise InvalidRequestError(
                f"normalize must be true or false, got {str(self.normalize)[:40]!r}", "normalize"
            )
        given = self.dimensions
        if given is not None and (type(given) is not int or not 1 <= given <= hidden_size):
            raise InvalidRequestError(
                f"dimensions must be an integer from 1 to {hidden_size}, the model's hidden size, "
                f"got {str(given)[:40]}",
                "dimensions",
            )
