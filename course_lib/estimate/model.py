"""A model to be trained, described only by its config.json, without its weights.

The sizes of GPT-2 and Llama are read as sizes of our decoder. Activations of every family are
counted in Transformers' code, because most people run that code. Lesson 12.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from course_lib.estimate.fit import params_of_rank
from course_lib.estimate.forward_watch import stacks
from course_lib.estimate.shape import Shape, shape_of
from course_lib.estimate.transformers_model import KeptBytes, TransformersModel
from course_lib.gpt import Config
from course_lib.pretrained.config import TRAITS, from_transformers, to_transformers
from course_lib.pretrained.header import read_json
from course_lib.pretrained.sketch import without_numbers

# Config keys for the longest sequence, the most likely key first.
LONGEST = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
NO_SHAPE = ("rope_scaling", "rope_parameters", "rope_theta", "quantization_config")


class Model:
    """A model from the `keys` of a config.json; errors call it `where`. `config` is our decoder's
    config with parameters of the same shapes, or None if our decoder has no such model."""

    def __init__(self, keys: Mapping, where: object = "config.json"):
        self.keys, self.where = dict(keys), where
        try:
            self.config = our_config(keys, where)
        except ValueError:  # a trait that our decoder lacks
            self.config = None
        self.ours = False  # True if our engine trains it instead of Transformers
        self._theirs: dict[torch.dtype, TransformersModel] = {}
        self._kept: dict[tuple, KeptBytes] = {}
        self._unknown: str | None = None
        if self.config is None:
            self.theirs()  # refuses an unreadable config

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """Read a Hugging Face config.json, or the config.json in a folder."""
        return cls(keys_of(path), path)

    @classmethod
    def of(cls, config: Config) -> Model:
        """Describe a decoder of this library, without a file."""
        try:
            model = cls(to_transformers(config, torch.float32))
        except ValueError:  # Transformers has no such model
            model = cls(to_transformers(config.changed(bias=True), torch.float32))
        model.config, model.ours = config, True
        return model

    @property
    def kind(self) -> str:
        """The config's model_type."""
        return str(self.keys.get("model_type"))

    @property
    def hidden(self) -> int:
        """The hidden size."""
        return self.theirs().config.hidden_size if self.config is None else self.config.hidden

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, or 0 if the config does not state it."""
        values = [self.keys.get(name) for name in LONGEST]
        if self.config is not None:
            values.insert(0, self.config.length)
        return next((n for n in values if isinstance(n, int) and n > 0), 0)

    def theirs(self, dtype: torch.dtype = torch.bfloat16) -> TransformersModel:
        """Return the model in Transformers' code, with elements of this dtype."""
        if dtype not in self._theirs:
            self._theirs[dtype] = TransformersModel(self.keys, self.where, dtype)
        return self._theirs[dtype]

    @property
    def activations_unknown(self) -> str | None:
        """The reason why the kept activations are unknown, or None if they are known."""
        if self._unknown is None and importlib.util.find_spec("transformers") is None:
            self._unknown = "transformers, whose code counts them, is not installed"
        if self._unknown is None:
            try:
                self.theirs().kept(1, 16)
                self._unknown = ""
            except Exception as error:  # any error of a foreign model's code
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self._unknown = f"its code does not run without data ({first[:120]})"
        return self._unknown or None

    def kept(self, rows: int, length: int, dtype: torch.dtype, **how: object) -> KeptBytes | None:
        """Count the kept bytes with `TransformersModel.kept`; None if they are unknown."""
        if self.activations_unknown:
            return None
        key = rows, length, dtype, *sorted(how.items())
        if key not in self._kept:
            self._kept[key] = self.theirs(dtype).kept(rows, length, **how)
        return self._kept[key]

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.theirs().model if self.config is None else self.config)

    @cached_property
    def outline(self) -> nn.Module:
        """The model with shapes only, without parameter values."""
        return self.theirs().model if self.config is None else without_numbers(self.config)

    @cached_property
    def numels(self) -> list[int]:
        """The number of elements of each parameter."""
        return [p.numel() for p in self.outline.parameters()]

    @cached_property
    def largest_unit(self) -> int:
        """The number of parameters in the largest block, or in a single tensor if it is larger."""
        blocks = (block for stack in stacks(self.outline) for block in stack)
        of_blocks = (sum(p.numel() for p in block.parameters()) for block in blocks)
        return max([*of_blocks, *self.numels])

    def params_of_rank(self, tp: int) -> int:
        """Count the parameters on one of `tp` ranks that share the model."""
        if self.config is not None:
            return params_of_rank(self.config, tp)
        if tp > 1 and not self.theirs().can_be_cut:
            raise ValueError(
                f"tp={tp}: the tensor-parallel layout of model_type {self.kind!r} is not known "
                "here, so use tp 1"
            )
        return self.theirs().params_of_rank(tp)

    def shape_of_rank(self, tp: int) -> Shape:
        """Return the sizes of the model's part on one of `tp` ranks."""
        largest = -(-self.shape.largest_layer // tp)
        return Shape(self.params_of_rank(tp), largest) if tp > 1 else self.shape

    def length(self, asked: int = 0) -> int:
        """Return the tokens per sequence: `asked`, or the config's maximum if `asked` is 0."""
        longest = self.longest
        table = self.config is not None or "max_position_embeddings" in self.keys
        if not asked and not longest:
            raise ValueError(
                f"{self.where} states no longest sequence ({', '.join(LONGEST)}), so state the "
                "tokens of your sequences with --length"
            )
        if table and asked > longest:
            raise ValueError(
                f"--length {asked} is longer than the {longest} tokens that {self.where} allows"
            )
        return asked or longest


def our_config(keys: Mapping, where: object = "config.json") -> Config | None:
    """Read a config as our decoder's config with the same parameter shapes. Return None for a
    different family; raise ValueError for a trait that our decoder lacks. Keys for position scaling
    and quantization are dropped, because they change no shape."""
    if keys.get("model_type") not in TRAITS:
        return None
    keys = {name: value for name, value in keys.items() if name not in NO_SHAPE}
    return from_transformers(keys, where)


def keys_of(path: str | Path) -> Mapping:
    """Read the keys of a config.json, or of the config.json in a folder, unchanged."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{path} is not there; name a config.json, or the folder that contains it")
    keys = read_json(path.read_bytes(), path)
    if not isinstance(keys, Mapping):
        raise ValueError(f"{path} holds a {type(keys).__name__}, but not the keys of a config")
    return keys
