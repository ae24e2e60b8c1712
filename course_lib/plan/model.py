"""The model to be planned for: a decoder of ours by its config, or another by its size alone.

Of a family whose layers are not known the states can be counted, and the flops be guessed; where
its activations go and how it is cut cannot. Lesson 15.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from course_lib.deepspeed_config.auto import hidden_size
from course_lib.deepspeed_config.settings import Sizes
from course_lib.estimate.shape import Shape, keys_of, read, read_ours, shape_of
from course_lib.gpt import Config
from course_lib.pretrained.config import to_transformers
from course_lib.pretrained.sketch import without_numbers


@dataclass(frozen=True)
class Model:
    """`config` is None of a family that is not ours; `keys` are those of its config.json."""

    shape: Shape
    config: Config | None
    keys: dict = field(repr=False)
    path: Path | None = None

    @classmethod
    def read(cls, path: str | Path) -> Model:
        config = read_ours(path)
        shape = read(path) if config is None else shape_of(config)
        return cls(shape, config, dict(keys_of(path)), Path(path))

    @classmethod
    def of(cls, config: Config) -> Model:
        """Of sizes, without a file."""
        import torch

        return cls(shape_of(config), config, to_transformers(config, torch.float32))

    @property
    def kind(self) -> str:
        """Its model_type."""
        return str(self.keys.get("model_type"))

    @property
    def sizes(self) -> Sizes:
        """What DeepSpeed's settings follow from."""
        hidden = hidden_size(self.keys)
        if self.config is None:
            return Sizes(hidden, self.shape.largest_layer, self.shape.largest_layer)
        outline = without_numbers(self.config)
        block = sum(p.numel() for p in outline.blocks[0].parameters())
        largest = max(p.numel() for p in outline.parameters())
        return Sizes(hidden, max(largest, block), largest)
