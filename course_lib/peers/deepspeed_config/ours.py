"""A rung of the ladder as a command for our engine, so that the meter can check the prediction.

`course train` creates new models of GPT-2's and Llama's shapes; other configs have no command.
Lesson 13.
"""

from __future__ import annotations

from course_lib.estimate.ladder import LIVE
from course_lib.estimate.setting import Setting
from course_lib.estimate.shape import shape_of
from course_lib.gpt import Config


def train(
    config: Config | None,
    length: int,
    world: int,
    setting: Setting,
    *,
    tp: int = 1,
    sequence: bool = False,
) -> list[str] | None:
    """Return the `course train` arguments that run a rung with a new model of this shape, or None
    if `course train` cannot create such a model."""
    if config is None:
        return None
    family = "gpt2" if config.position == "learned" else "llama"
    make = Config.gpt2 if family == "gpt2" else Config.llama
    names = ("hidden", "layers", "heads", "kv_heads", "inner", "vocabulary")
    sizes = {name: getattr(config, name) for name in names}
    ours = make(length=length, **sizes)
    same = ("bias", "tied", "norm", "activation", "position")
    same += ("length",) if family == "gpt2" else ()  # learned positions are parameters
    if config.dropout or any(getattr(ours, name) != getattr(config, name) for name in same):
        return None
    if shape_of(config).params > LIVE and setting.stage == 3 and not setting.lean:
        return None  # --fast keeps everything, but the rung does not
    found = ["--family", family, "--ranks", world]
    for name, size in sizes.items():
        found += [f"--{name.replace('_', '-')}", size]
    found += ["--tp", tp] if tp > 1 else []
    found += ["--sequence"] if sequence else []
    found += ["--length", length, "--rows", setting.rows * setting.accumulate * (world // tp)]
    found += ["--accumulate", setting.accumulate, "--stage", setting.stage]
    found += ["--precision", setting.precision]
    found += ["--recompute"] if setting.recompute else []
    place = setting.optimizer or setting.parameters
    if place is not None:
        found += ["--offload", place]
        if setting.stage == 3:
            found += [] if setting.optimizer else ["--no-offload-optimizer"]
            found += [] if setting.parameters else ["--no-offload-parameters"]
    found += ["--fast"] if setting.stage == 3 and not setting.lean else []
    return [str(word) for word in found]
