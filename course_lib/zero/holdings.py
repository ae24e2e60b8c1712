"""The bytes of an engine by tier: on the device, on the host, in files.

Each tensor of the model, the optimizer and the engine is assigned to its tier, and a storage counts
once. Lesson 12 compares the result with the estimate.
"""

from __future__ import annotations

import torch

from course_lib.memory import held
from course_lib.zero.engine import Engine
from course_lib.zero.inference import Inference


def holdings(engine: Engine | Inference) -> dict[str, int]:
    """Return the bytes that this rank now holds for training or inference, by tier."""
    home = engine.home
    kept = [engine.model, engine.shards.memory(), home.memory()]
    if isinstance(engine, Engine):
        kept += [engine.optimizer, engine.gradients.buffers]
    by_tier = held(*kept, computes_on=_shapes(engine)).by_tier
    return {**by_tier, "disk": home.file_bytes}


def holdings_by_kind(engine: Engine) -> dict[str, int]:
    """Return the bytes of an engine between two steps by kind, with the names of `estimate.states`.
    Masters are separate copies that the optimizer updates; staging is memory through which files
    are read and written."""
    shards, home, in_files = engine.shards, engine.home, engine.home.file_bytes
    parts = {id(part): part for _, part in shards.parts()}
    whole = [x for x in shards.memory() if id(x) not in parts]
    through = [x for x in home.memory() if x.dtype == torch.uint8]
    counters = [x for x in home.memory() if x.dtype != torch.uint8]
    kinds = {
        "buffers": list(engine.model.buffers()),
        "parameters": [*engine.model.parameters(), *whole],
        "gradients": engine.gradients.buffers,
        "staging" if in_files else "masters": [*parts.values(), *through],
        "optimizer states": [*counters, *engine.optimizer.state.values()],
    }
    found = held(kinds=kinds, computes_on=_shapes(engine)).by_kind
    return {kind: n for kind, n in {**found, "files": in_files}.items() if n}


def _shapes(engine: Engine | Inference) -> str | None:
    """Return "meta" for a model of shapes only, which count as memory; otherwise None."""
    return "meta" if next(engine.model.parameters()).is_meta else None
