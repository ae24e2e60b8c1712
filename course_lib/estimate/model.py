"""A model that is to be trained, by the config.json that describes it: no weights are read.

GPT-2's and Llama's sizes are read as our own decoder's; what any family's forward keeps is counted
in Transformers' code, because that is what people run. Lesson 12.
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

# A config's names for its longest sequence, the likeliest first.
LONGEST = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
NO_SHAPE = ("rope_scaling", "rope_parameters", "rope_theta", "quantization_config")


class Model:
    """`keys` are those of a config.json, `where` names it in errors. `config` is our decoder's with
    parameters of the same shapes, None where it has no such model."""

    def __init__(self, keys: Mapping, where: object = "config.json"):
        self.keys, self.where = dict(keys), where
        try:
            self.config = our_config(keys, where)
        except ValueError:  # a trait that ours has not
            self.config = None
        self.ours = False  # whether our engine trains it, and not Transformers' code
        self._theirs: dict[torch.dtype, TransformersModel] = {}
        self._kept: dict[tuple, KeptBytes] = {}
        self._unknown: str | None = None
        if self.config is None:
            self.theirs()  # refuses what cannot be read

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """That of a Hugging Face config.json, or of a folder with one."""
        return cls(keys_of(path), path)

    @classmethod
    def of(cls, config: Config) -> Model:
        """Of a decoder of ours, without a file."""
        try:
            model = cls(to_transformers(config, torch.float32))
        except ValueError:  # Transformers has no such model
            model = cls(to_transformers(config.changed(bias=True), torch.float32))
        model.config, model.ours = config, True
        return model

    @property
    def kind(self) -> str:
        """Its model_type."""
        return str(self.keys.get("model_type"))

    @property
    def hidden(self) -> int:
        """Elements of a token's state."""
        return self.theirs().config.hidden_size if self.config is None else self.config.hidden

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence; 0 where the config names none."""
        values = [self.keys.get(name) for name in LONGEST]
        if self.config is not None:
            values.insert(0, self.config.length)
        return next((n for n in values if isinstance(n, int) and n > 0), 0)

    def theirs(self, dtype: torch.dtype = torch.bfloat16) -> TransformersModel:
        """The model in Transformers' code, in numbers of this type."""
        if dtype not in self._theirs:
            self._theirs[dtype] = TransformersModel(self.keys, self.where, dtype)
        return self._theirs[dtype]

    @property
    def activations_unknown(self) -> str | None:
        """Why it is not known what a forward keeps; None where it is."""
        if self._unknown is None and importlib.util.find_spec("transformers") is None:
            self._unknown = "transformers is not installed, in whose code they are counted"
        if self._unknown is None:
            try:
                self.theirs().kept(1, 16)
                self._unknown = ""
            except Exception as error:  # any of a foreign model's code
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self._unknown = f"its code does not run on shapes alone ({first[:120]})"
        return self._unknown or None

    def kept(self, rows: int, length: int, dtype: torch.dtype, **how: object) -> KeptBytes | None:
        """What `TransformersModel.kept` counts; None where that is unknown."""
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
        """The model without numbers."""
        return self.theirs().model if self.config is None else without_numbers(self.config)

    @cached_property
    def numels(self) -> list[int]:
        """The elements of each parameter."""
        return [p.numel() for p in self.outline.parameters()]

    @cached_property
    def largest_unit(self) -> int:
        """The parameters of the largest block, or of the largest layer outside them."""
        blocks = (block for stack in stacks(self.outline) for block in stack)
        of_blocks = (sum(p.numel() for p in block.parameters()) for block in blocks)
        return max([*of_blocks, *self.numels])

    def params_of_rank(self, tp: int) -> int:
        """The parameters of one of `tp` ranks that share the model."""
        if self.config is not None:
            return params_of_rank(self.config, tp)
        if tp > 1 and not self.theirs().can_be_cut:
            raise ValueError(
                f"tp={tp}: how tensor parallelism cuts a model of model_type {self.kind!r} is not "
                "known here; plan it without"
            )
        return self.theirs().params_of_rank(tp)

    def shape_of_rank(self, tp: int) -> Shape:
        """The sizes that such a rank has."""
        largest = -(-self.shape.largest_layer // tp)
        return Shape(self.params_of_rank(tp), largest) if tp > 1 else self.shape

    def length(self, asked: int = 0) -> int:
        """Tokens of a sequence: as many as are asked for, or the longest that the config names."""
        longest = self.longest
        table = self.config is not None or "max_position_embeddings" in self.keys
        if not asked and not longest:
            raise ValueError(
                f"{self.where} names no longest sequence ({', '.join(LONGEST)}): say with --length "
                "how many tokens yours have"
            )
        if table and asked > longest:
            raise ValueError(
                f"--length {asked} is longer than the {longest} tokens that {self.where} allows"
            )
        return asked or longest


def our_config(keys: Mapping, where: object = "config.json") -> Config | None:
    """Our decoder's config with parameters of the same shapes; None for another family, ValueError
    for a trait that ours has not. How positions are scaled and how weights are stored changes no
    shape."""
    if keys.get("model_type") not in TRAITS:
        return None
    keys = {name: value for name, value in keys.items() if name not in NO_SHAPE}
    return from_transformers(keys, where)


def keys_of(path: str | Path) -> Mapping:
    """The keys of a config.json, or of that in a folder, as they are written."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{path} is not there; name a config.json, or a folder that has one")
    keys = read_json(path.read_bytes(), path)
    if not isinstance(keys, Mapping):
        raise ValueError(f"{path} holds a {type(keys).__name__} and not the keys of a config")
    return keys
