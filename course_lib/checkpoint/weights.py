"""Weights out of a checkpoint of anybody's, tensor by tensor: to a folder, to a model, one by one.

What DeepSpeed's zero_to_fp32.py and load_state_dict_from_zero_checkpoint are used for, with no more
on the host than one tensor and one buffer. Lesson 14.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import pretrained
from course_lib.checkpoint.sources import Source, opened
from course_lib.checkpoint.units import unit_by_unit
from course_lib.gpt import GPT
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.names import ignored, prefix_of, weights_of
from course_lib.pretrained.writer import Writer
from course_lib.zero import Engine

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What belongs to a model's folder beside weights and config.json, as transformers names it.
BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip


def convert(
    source: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    dtype: torch.dtype | str | None = None,
    shard_bytes: float = 5e9,
    config: str | os.PathLike | None = None,
) -> dict:
    """Write a checkpoint's weights as a folder of safetensors; returns what was written.

    `dtype` is float32 unless given, and that of a plain Hugging Face folder its own. The folder
    appears whole or not at all. Tied tensors are written once, under the first of their names.
    """
    dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
    with opened(source, config) as weights:
        if _same(weights.path, folder) or _same(source, folder):
            raise CheckpointError(f"{folder} is what the weights are read from; name a new folder")
        if dtype is None and weights.about["kind"] != "huggingface":
            dtype = torch.float32
        tied, names = weights.tied, {name: name for name in weights.tensors}
        if (weights.config or {}).get("tie_word_embeddings") is False:
            names, tied = {**names, **tied}, {}  # transformers will ask for both
        kinds = {
            name: (_out(weights.tensors[of].dtype, dtype), tuple(weights.tensors[of].shape))
            for name, of in names.items()
        }
        keys = None if weights.config is None else _with_dtype(weights.config, kinds)
        writer = Writer(folder, kinds, keys, shard_bytes)
        try:
            for name, (kind, shape) in kinds.items():
                raw = bytearray(math.prod(shape) * kind.itemsize)
                if raw:
                    weights.into(names[name], torch.frombuffer(raw, dtype=kind).view(shape))
                writer.put(name, raw)
                del raw  # before the next one is made
            _copy_beside(source, weights, writer.new)
            files = sorted(path.name for path in writer.new.iterdir())
            writer.finish()
        except BaseException:
            writer.discard()
            raise
        return {
            "source": weights.about,
            "folder": str(writer.folder),
            "dtypes": sorted({str(kind).removeprefix("torch.") for kind, _ in kinds.values()}),
            "tensors": len(kinds),
            "bytes": writer.total,
            "files": files,
            "tied": tied,
        }


def state_dict(
    source: str | os.PathLike,
    *,
    dtype: torch.dtype | None = torch.float32,
    config: str | os.PathLike | None = None,
    tied: bool = True,
) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) one by one, in float32 or `dtype`, or as stored with None; only the tensor
    that was given last has to be held. With `tied`, a tied one comes under each of its names."""
    with opened(source, config) as weights:
        others: dict[str, list[str]] = {}
        for name, of in weights.tied.items() if tied else ():
            others.setdefault(of, []).append(name)
        for name in weights.tensors:
            tensor = weights.read(name, dtype)
            yield name, tensor
            for other in others.get(name, ()):
                yield other, tensor
            del tensor


def load_into(
    model: nn.Module, source: str | os.PathLike, *, config: str | os.PathLike | None = None
) -> nn.Module:
    """Fill a whole model on this process, our GPT or one of transformers', in its own dtypes.

    Every name and shape is held against the model before the first element is changed.
    """
    with opened(source, config) as weights:
        targets = _targets(model, weights)
        for name, target in targets.items():
            weights.into(weights.tied.get(name, name), target)
    return model


def save_16bit(
    engine: Engine,
    folder: str | os.PathLike,
    mesh: DeviceMesh | None = None,
    *,
    gather: bool = True,
    config: Mapping | None = None,
    shard_bytes: float = 5e9,
) -> None:
    """Write the weights that the engine computes with, in its precision, for transformers; every
    rank calls it.

    `gather` is DeepSpeed's stage3_gather_16bit_weights_on_model_save: at stage 3 no rank has a
    whole weight, and without gathering there is nothing to write. DeepSpeed then writes nothing and
    says nothing; here that is an error.
    """
    if engine.stage == 3 and not gather:
        raise CheckpointError(
            f"gather=False at stage 3: each rank holds a part of every weight, so {folder} would "
            "get none. Pass gather=True (one unit at a time is gathered), or save a checkpoint, "
            "which gathers nothing, and make the folder of it afterwards: course weights IN OUT"
        )
    with unit_by_unit(engine) as gathered:
        pretrained.save(
            engine.module, folder, mesh, config=config, shard_bytes=shard_bytes, gathered=gathered
        )


def _targets(model: nn.Module, weights: Source) -> dict[str, Tensor]:
    """Where each tensor of the source goes: the model's own memory, by the source's names."""
    own = dict(model.state_dict(keep_vars=True))
    names = weights.tensors.keys() | weights.tied.keys()
    if isinstance(model, GPT) and "tokens.weight" not in names:
        prefix = prefix_of(model.config, names)
        own = {
            part.name: part.turned(rows)
            for weight in weights_of(model.config, prefix)
            for part, rows in zip(
                weight.parts,
                model.get_parameter(weight.name).split([part.rows for part in weight.parts]),
                strict=True,
            )
        }
        names = {name for name in names if not ignored(model.config, name, prefix)}
        if model.config.tied:
            names -= {"lm_head.weight"}
    lost, more = _not_covered(model, own, names), sorted(names - own.keys())
    if lost or more:
        what = f"{lost[0]} of the model is not in it" if lost else f"{more[0]} is not in the model"
        raise CheckpointError(
            f"{weights.path} is of another model: {what}; {len(lost)} tensors of the model are "
            f"missing, and {len(more)} are too many"
        )
    for name in sorted(names):
        shape, target = weights.tensors[weights.tied.get(name, name)].shape, own[name]
        if target.is_meta:
            raise CheckpointError(f"{name} of the model has no memory yet; model.to_empty gives it")
        if tuple(target.shape) != tuple(shape):
            cut = hasattr(target, "ds_id")
            raise CheckpointError(
                f"{weights.path}: {name} is {tuple(shape)}, and the model's is "
                f"{tuple(target.shape)}"
                + ("; DeepSpeed has cut it: use deepspeed.zero.GatheredParameters" if cut else "")
            )
    return {name: target for name, target in own.items() if name in names}


def _not_covered(model: nn.Module, own: Mapping[str, Tensor], names: set[str]) -> list[str]:
    """Tensors of the model that nothing fills, not even under the name that they are tied to."""
    filled = {own[name].data_ptr() for name in names if name in own and own[name].numel()}
    return sorted(
        name for name, x in own.items() if name not in names and x.data_ptr() not in filled
    )


def _out(stored: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and stored.is_floating_point else stored


def _with_dtype(config: Mapping, kinds: Mapping) -> dict:
    """The same config, saying the dtype that most of the elements now have."""
    sizes: dict[torch.dtype, int] = {}
    for dtype, shape in kinds.values():
        sizes[dtype] = sizes.get(dtype, 0) + math.prod(shape)
    most = max(sizes, key=sizes.__getitem__)
    keys = {key: value for key, value in config.items() if key != "torch_dtype"}
    return {**keys, "dtype": str(most).removeprefix("torch.")}


def _copy_beside(source: str | os.PathLike, weights: Source, folder: Path) -> None:
    for top in (weights.path, Path(source).expanduser()):
        for name in BESIDE if top.is_dir() else ():
            if (top / name).is_file() and not (folder / name).exists():
                shutil.copyfile(top / name, folder / name)


def _same(one: str | os.PathLike, other: str | os.PathLike) -> bool:
    one, other = Path(one).expanduser(), Path(other).expanduser()
    return one.exists() and other.exists() and one.samefile(other)
