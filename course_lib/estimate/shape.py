"""How many numbers a model has and how many its largest layer, read from shapes alone.

From a config.json, a Config, or a model, none of which needs a single number. Lesson 12.
"""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from course_lib.gpt import MLP, Attention, Config
from course_lib.pretrained.config import TRAITS, from_transformers
from course_lib.pretrained.header import read_json
from course_lib.pretrained.sketch import without_numbers


class Shape(NamedTuple):
    """Distinct parameters in all, and those of the module with the most of its own."""

    params: int
    largest_layer: int


def sketch(model: nn.Module | Config, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy of a model that has shapes and no numbers, of `dtype` where one is given."""
    if isinstance(model, Config):  # made here: nobody else's, and no copy is needed
        return without_numbers(model).to(dtype)
    known: dict[int, object] = {}
    for x in [*model.parameters(), *model.buffers()]:
        shape = torch.empty(x.shape, dtype=x.dtype, device="meta")
        trains = x.requires_grad
        known[id(x)] = nn.Parameter(shape, trains) if isinstance(x, nn.Parameter) else shape
    outline = copy.deepcopy(model, known)
    return outline if dtype is None else outline.to(dtype)


def sketch_of(
    model: nn.Module | Config, dtype: torch.dtype | None, units: Sequence[nn.Module] | None
) -> tuple[nn.Module, Sequence[nn.Module] | None]:
    """A sketch of a model, itself where it is one, and in it the modules that `units` are there."""
    if isinstance(model, Config):
        return sketch(model, dtype), units
    tensors = [*model.parameters(), *model.buffers()]
    dtypes = {x.dtype for x in tensors if x.is_floating_point()}
    if all(x.is_meta for x in tensors) and (dtype is None or dtypes <= {dtype}):
        return model, units
    outline = sketch(model, dtype)
    if units is None:
        return outline, None
    names = {module: name for name, module in model.named_modules()}
    return outline, [outline.get_submodule(names[module]) for module in units]


def shape_of(model: nn.Module | Config) -> Shape:
    """A shared parameter counts once in all, and in every layer that has it.

    In our GPT some layers are joined into one product: they count as the layers that a checkpoint
    has, Llama's as q, k, v and gate, up.
    """
    apart = isinstance(model, Config) and model.activation == "swiglu"
    if isinstance(model, Config):
        model = without_numbers(model)
    most = 0
    joined: dict[nn.Module, list[int]] = {}
    for module in model.modules():
        if apart and isinstance(module, Attention):
            heads = (module.heads, module.kv_heads, module.kv_heads)
            joined[module.qkv] = [n * module.head_size for n in heads]
        if apart and isinstance(module, MLP):
            joined[module.gate_up] = [module.gate_up.out_features // 2] * 2
    for module in model.modules():
        own = sum(p.numel() for p in module.parameters(recurse=False))
        if module in joined:
            rows = joined[module]
            own = own // sum(rows) * max(rows)
        most = max(most, own)
    return Shape(sum(p.numel() for p in model.parameters()), most)


def read(path: str | Path) -> Shape:
    """The shape that a Hugging Face config.json describes (or a folder with one)."""
    path, keys = _keys(path)
    try:
        if keys.get("model_type") in TRAITS:
            return shape_of(from_transformers(keys, path))
        return _by_transformers(path, keys)
    except (KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a model: {error}") from error


def read_ours(path: str | Path) -> Config | None:
    """The same file as a config of our decoder; None where it describes another family."""
    path, keys = _keys(path)
    return from_transformers(keys, path) if keys.get("model_type") in TRAITS else None


def keys_of(path: str | Path) -> Mapping:
    """The keys of a config.json, or of that in a folder, as they are written."""
    return _keys(path)[1]


def _keys(path: str | Path) -> tuple[Path, Mapping]:
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ValueError(f"{path} is not there; name a config.json, or a folder that has one")
    keys = read_json(path.read_bytes(), path)
    if not isinstance(keys, Mapping):
        raise ValueError(f"{path} holds a {type(keys).__name__} and not the keys of a config")
    return path, keys


def _by_transformers(path: Path, keys: Mapping) -> Shape:
    """Any other family, as its own code makes it, on torch's meta device."""
    kind = keys.get("model_type")
    if kind is None:
        raise ValueError(f"{path} says no model_type: is it a config.json of a model?")
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(
            f"{path}: model_type={kind!r} is none of {', '.join(TRAITS)}, and to read others "
            "transformers has to be installed (pip install transformers); or give --params and "
            "--largest-layer"
        )
    import transformers

    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            config = transformers.AutoConfig.from_pretrained(
                path.parent, _configuration_file=path.name
            )
            named = getattr(transformers, (keys.get("architectures") or [""])[0], None)
            with torch.device("meta"):
                auto = transformers.AutoModel.from_config
                model = auto(config) if named is None else named(config)
    except (ValueError, RuntimeError) as error:  # which lists all models that there are
        first = str(error).strip().splitlines()[0][:200]
        raise ValueError(
            f"{path}: transformers makes no model of model_type={kind!r} from this: {first}"
        ) from error
    return shape_of(model)
