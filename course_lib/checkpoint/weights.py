"""Weights of any checkpoint converted into a folder for transformers, tensor by tensor.

It does what DeepSpeed's zero_to_fp32.py does, but holds only one tensor and one buffer. Lesson 14.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from course_lib.checkpoint.sources import Source, opened
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.writer import Writer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Files of a model's folder next to the weights and config.json, as transformers names them.
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
    """Write a checkpoint's weights as a folder of safetensors; return a description of it.

    `dtype` defaults to float32, or to the stored dtypes of a plain Hugging Face folder. The folder
    appears completely or not at all. Tied tensors are written once, under their first name.
    """
    dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
    with opened(source, config) as weights:
        if _same(weights.path, folder) or _same(source, folder):
            raise CheckpointError(f"the weights are read from {folder}; name a new folder")
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
            "bytes": writer.files.total,
            "files": files,
            "tied": tied,
        }


def _out(stored: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and stored.is_floating_point else stored


def _with_dtype(config: Mapping, kinds: Mapping) -> dict:
    """Return the same config with the dtype that most of the elements now have."""
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
