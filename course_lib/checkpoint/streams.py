"""The random streams of a run: one for each replica, shared by its tp ranks, so layouts may change.

If the number of replicas stays the same, each replica continues with its own stream, for any tp.
Otherwise each replica gets a new stream, derived from all saved streams. Lesson 14.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib.pretrained.header import CheckpointError
from course_lib.tensor_parallel.randomness import seed_all


def streams_of(mesh: DeviceMesh) -> list[dict]:
    """Return the state of every replica's generators (torch's and Python's) by dp rank. All ranks
    call it. A replica's tp ranks share one stream, so the state of any one of them is enough."""
    dp = mesh.get_group("dp")
    states: list = [None] * dp.size()
    dist.all_gather_object(states, _state(), group=dp)
    return states


def restore_streams(streams: Sequence[Mapping], mesh: DeviceMesh) -> bool:
    """Continue with this replica's stream. If the numbers of replicas and streams differ, start new
    streams, which only a replica's tp ranks share, and return False. Every rank calls it."""
    dp = mesh.get_group("dp")
    if len(streams) == dp.size():
        _set(streams[dp.rank()])
        return True
    digest = hashlib.sha256(json.dumps(list(streams), sort_keys=True).encode()).digest()
    seed_all(int.from_bytes(digest[:6], "big"), replica=dp.rank())
    random.seed(int.from_bytes(digest[6:12], "big") + dp.rank())
    return False


def _state() -> dict:
    version, numbers, gauss = random.getstate()
    words = b"".join(number.to_bytes(4, "little") for number in numbers)
    state = {"torch": _text(torch.get_rng_state()), "python": [version, _base64(words), gauss]}
    if torch.cuda.is_available():
        state["cuda"] = _text(torch.cuda.get_rng_state())
    return state


def _set(state: Mapping) -> None:
    try:
        version, words, gauss = state["python"]
        raw = base64.b64decode(words, validate=True)
        numbers = tuple(int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4))
        random.setstate((version, numbers, gauss))
        torch.set_rng_state(_bytes(state["torch"]))
        if torch.cuda.is_available() and "cuda" in state:
            torch.cuda.set_rng_state(_bytes(state["cuda"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint's random streams cannot be used here ({error}). Load it without them "
            "(streams=False) and seed the ranks yourself"
        ) from error


def _text(x: torch.Tensor) -> str:
    return _base64(x.numpy().tobytes())


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
