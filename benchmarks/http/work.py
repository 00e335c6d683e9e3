"""The work of one round: the same prompts for both sides, others in each round."""

from __future__ import annotations

import random
from typing import Any

FIRST_ID, END_ID = 100, 49_000  # no special token of SmolLM2; valid in larger vocabularies


def make_order(number: int, streams: int, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    """Token ids from a seed per round, so that nothing is found in the prefix cache."""
    source = random.Random(20261201 + number)
    prompts = [[source.randrange(FIRST_ID, END_ID) for _ in range(prompt_tokens)] for _ in range(streams)]
    return {"prompts": prompts, "new_tokens": new_tokens}
