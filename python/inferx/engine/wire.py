"""What travels between the front end and the engine process: msgpack through msgspec, never pickle."""

from __future__ import annotations

from typing import Literal

import msgspec

from inferx.engine.protocol import EngineOutput, EngineRequest, EngineStats


class AddRequest(msgspec.Struct, array_like=True, tag="add"):
    request: EngineRequest


class AbortRequest(msgspec.Struct, array_like=True, tag="abort"):
    """The client is gone: drop every sample of the request and free its blocks."""

    request_id: str


class FinishSample(msgspec.Struct, array_like=True, tag="finish"):
    """The front end found a stop string: the sample is complete, its last tokens are not wanted."""

    request_id: str
    index: int


class Shutdown(msgspec.Struct, array_like=True, tag="shutdown"):
    pass


ToCore = AddRequest | AbortRequest | FinishSample | Shutdown


class EngineInfo(msgspec.Struct):
    """What the front end must know of a loaded engine."""

    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    architecture: str
    weight_bytes: int
    kv_bytes_per_token: int
    total_parameters: int
    active_parameters: int  # that one token computes with
    load_seconds: float


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    info: EngineInfo


class StartupFailed(msgspec.Struct, array_like=True, tag="failed"):
    """kind: which error class the front end raises."""

    kind: Literal["load", "memory", "invalid", "internal"]
    message: str
    param: str | None = None


class Rejected(msgspec.Struct, array_like=True, tag="rejected"):
    """The scheduler refused the request at admission.  kind: which error class the front end raises."""

    request_id: str
    message: str
    param: str | None = None
    kind: Literal["invalid", "queue_full", "failed"] = "invalid"


class Step(msgspec.Struct, array_like=True, tag="step"):
    outputs: list[EngineOutput]
    stats: EngineStats


FromCore = Ready | StartupFailed | Rejected | Step

encoder = msgspec.msgpack.Encoder()
to_core_decoder = msgspec.msgpack.Decoder(ToCore)
from_core_decoder = msgspec.msgpack.Decoder(FromCore)
