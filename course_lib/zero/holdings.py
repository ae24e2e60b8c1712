"""Where an engine has its bytes: on the device, on the host, in files.

Every tensor that the model, the optimizer and the engine have is asked for its tier; a storage
counts once. Lesson 12 sets it beside the estimate.
"""

from __future__ import annotations

from course_lib.memory import held
from course_lib.zero.engine import Engine
from course_lib.zero.inference import Inference


def holdings(engine: Engine | Inference) -> dict[str, int]:
    """Bytes that this rank holds for training, or for inference, right now, by tier."""
    home = engine.home
    kept = [engine.model, engine.shards.memory(), home.memory()]
    if isinstance(engine, Engine):
        kept += [engine.optimizer, engine.gradients.buffers]
    by_tier = held(*kept).by_tier
    return {**by_tier, "disk": home.file_bytes}
