"""The loading of weights: each rank reads its slices of sharded weights, and replicated weights.

First all names, shapes, dtypes and files are checked, and only then is the first element changed.
An error on one rank is raised on all ranks. Lesson 08.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.collectives.agreement import all_or_none
from course_lib.collectives.call import Group
from course_lib.gpt import GPT, Config
from course_lib.pretrained.config import family, read_config
from course_lib.pretrained.header import DTYPES, CheckpointError
from course_lib.pretrained.names import (
    HEAD,
    STORED_HEAD,
    TABLE,
    Weight,
    WeightPiece,
    check_model,
    held,
    ignored,
    places,
    prefix_of,
    weights_of,
)
from course_lib.pretrained.reader import Checkpoint, check_range
from course_lib.pretrained.sketch import Sketching, without_numbers
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # on the Hugging Face hub
# Config keys that change neither the logits nor a shape, so a checkpoint may differ in them.
FREE = {"dropout", "attention_dropout", "recompute", "length"}


def from_pretrained(
    source: str | os.PathLike,
    mesh: DeviceMesh | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    **options: object,
) -> GPT:
    """Load a checkpoint's model, in eval mode; with a mesh, sharded over its axis tp.

    The model is sharded on torch's meta device and then filled, so no rank ever holds all of it.
    `dtype` defaults to the stored dtype, and `options` are passed to `parallelize`.
    """
    model = outline_of(source, mesh, dtype=dtype, **options)
    return load(model, source, mesh, device=device)


def outline_of(
    source: str | os.PathLike,
    mesh: DeviceMesh | None = None,
    *,
    dtype: torch.dtype | None = None,
    **options: object,
) -> GPT:
    """Create a checkpoint's model on torch's meta device, sharded over the mesh."""
    if mesh is None and options:
        raise TypeError(f"{', '.join(options)} describes sharding, but no mesh was given")
    with together(groups_of(None, mesh), f"reading {source}"):
        path = locate(source)
        config = read_config(_folder(path) / "config.json")
        dtype = dtype or _stored_dtype(path, config)
        model = without_numbers(config).to(dtype).eval()
    if mesh is not None:
        with Sketching():
            parallelize(model, mesh, **options)
    return model


def load(
    model: GPT,
    source: str | os.PathLike,
    mesh: DeviceMesh | None = None,
    *,
    device: torch.device | str = "cpu",
) -> GPT:
    """Fill a model from a checkpoint, in place; all ranks that share it must call this.

    Parameters on torch's meta device are moved to `device`, and others stay where they are.
    Elements are converted to the model's dtype.
    """
    fill = Filler(model, source, mesh)
    with contextlib.closing(fill), together(groups_of(model, mesh), f"reading {source}"):
        materialize(model, device)
        for name in fill.weights:
            fill(name, model.get_parameter(name))
    return model


class Filler:
    """A callable that reads this rank's part of a named parameter into a given tensor. All ranks
    that share the model create one, which checks the checkpoint first. Call `close` at the end."""

    def __init__(self, model: GPT, source: str | os.PathLike, mesh: DeviceMesh | None = None):
        groups = groups_of(model, mesh)
        with contextlib.ExitStack() as stack:
            with together(groups, f"checking {source}"):
                check_model(model)
                path = locate(source)
                _same_config(model.config, _folder(path) / "config.json")
                checkpoint = stack.enter_context(Checkpoint(path))
                weights = _checked(model, checkpoint)
            with together(groups, f"reading {source}"):
                _check_tied(model, weights, checkpoint)
            self.weights = {weight.name: weight for weight in weights}
            self.pieces = {weight.name: held(model, weight) for weight in weights}
            self.checkpoint, self._open = checkpoint, stack.pop_all()

    def __call__(self, name: str, part: Tensor) -> None:
        _fill(part, self.weights[name], self.pieces[name], self.checkpoint)

    def close(self) -> None:
        self._open.close()


def together(groups: Sequence[Group], what: str) -> AbstractContextManager[None]:
    """Run the body, which reads or writes files. If it fails on a rank, raise that error there and
    a CheckpointError on all other ranks of the groups, so that no later collective hangs."""
    return all_or_none(groups, what, error=CheckpointError)


def locate(source: str | os.PathLike) -> Path:
    """Return the path of a checkpoint. A name on the hub, such as 'openai-community/gpt2', is
    downloaded as safetensors and JSON, never as a pickle."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not (isinstance(source, str) and NAME.fullmatch(source)) or path.suffix == ".safetensors":
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"there is no folder {source!r} here, and downloading that name from the hub needs "
            "huggingface_hub; run pip install 'course_lib[huggingface]'"
        ) from error
    try:  # concurrent ranks wait for each other, since the hub's own files are locked
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:  # the hub and the network raise many classes of errors
        raise CheckpointError(
            f"there is no folder {source!r} here, and the hub did not return a model of that name "
            f"({type(error).__name__}: {str(error).strip().splitlines()[0]}). Without a network, "
            "download it elsewhere (hf download) and pass the folder"
        ) from error


def groups_of(model: GPT | None, mesh: DeviceMesh | None) -> list[Group]:
    """Return the groups that load or save together: the mesh's, or the model's own group."""
    if mesh is not None:
        return [mesh.get_group(axis) for axis in range(mesh.ndim)]
    table = getattr(model, "tokens", None)
    return [table.group] if isinstance(table, VocabularyParallelEmbedding) else []


def _checked(model: GPT, checkpoint: Checkpoint) -> list[Weight]:
    """List the model's weights and their stored tensors, if the checkpoint has exactly these."""
    config, slots = model.config, checkpoint.slots
    prefix = prefix_of(config, slots)
    weights = weights_of(config, prefix)
    wanted = {part.name: part.shape(weight) for weight in weights for part in weight.parts}
    lost = sorted(wanted.keys() - slots.keys())
    if lost:
        tied = " (if the head is tied, set tie_word_embeddings=true in its config)"
        raise CheckpointError(
            f"{checkpoint.path} lacks {len(lost)} of the {len(wanted)} tensors of the model: "
            f"{_some(lost)}{tied if lost == [STORED_HEAD] else ''}"
        )
    more = [name for name in slots if name not in wanted and not ignored(config, name, prefix)]
    if config.tied:
        more = [name for name in more if name != STORED_HEAD]
    if more:
        raise CheckpointError(
            f"{checkpoint.path}: {len(more)} tensors do not belong in this model of "
            f"{config.layers} layers ({_some(sorted(more))})"
        )
    for name, shape in wanted.items():
        _check_slot(checkpoint, name, shape)
    return weights


def _check_slot(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    slot = checkpoint.slots[name]
    if slot.shape != shape:
        turned = slot.shape == shape[::-1]
        raise CheckpointError(
            f"{checkpoint.path}: {name} is {slot.shape}, but the model's config needs {shape}"
            + (". Is it transposed?" if turned else "")
        )
    if slot.dtype not in DTYPES:
        raise CheckpointError(
            f"{checkpoint.path}: {name} is stored as {slot.dtype}, but a weight must be one of "
            f"{', '.join(DTYPES)}. Was the checkpoint quantized?"
        )


def _same_config(config: Config, path: Path) -> None:
    """Compare the model with the checkpoint's config.json, if there is one, because a wrong epsilon
    or rotary base changes no shape."""
    if not path.exists():
        return
    theirs = read_config(path)
    kinds = family(config), family(theirs)
    if kinds[0] != kinds[1]:
        raise CheckpointError(f"{path} is a {kinds[1]}'s, but the model is a {kinds[0]}")
    other = theirs.as_dict()
    off = [
        f"{key}={value!r} (there {other[key]!r})"
        for key, value in config.as_dict().items()
        if key not in FREE and other[key] != value
    ]
    if off:
        raise CheckpointError(
            f"the model differs from {path} in {', '.join(off)}; create it with "
            "pretrained.read_config or from_pretrained"
        )


def _stored_dtype(path: Path, config: Config) -> torch.dtype:
    """Return the dtype in which the embedding table is stored."""
    with Checkpoint(path) as checkpoint:
        name = weights_of(config, prefix_of(config, checkpoint.slots))[0].parts[0].name
        slot = checkpoint.slots.get(name)
        return torch.float32 if slot is None else DTYPES.get(slot.dtype, torch.float32)


def _check_tied(model: GPT, weights: Sequence[Weight], checkpoint: Checkpoint) -> None:
    """Check that a tied head, if stored, equals the table; each rank compares its own rows."""
    if not model.config.tied or STORED_HEAD not in checkpoint.slots:
        return
    table = next(weight for weight in weights if weight.name == TABLE)
    _check_slot(checkpoint, STORED_HEAD, table.shape)
    for part, start, stop, _ in places(table, held(model, table)):
        one, other = (checkpoint.read(name, 0, start, stop) for name in (part.name, STORED_HEAD))
        if not torch.equal(one, other):
            raise CheckpointError(
                f"in {checkpoint.path}, {STORED_HEAD} differs from {part.name}, but the config "
                "says that they are tied; put tie_word_embeddings=false into config.json"
            )


def materialize(model: GPT, device: torch.device | str) -> None:
    """Allocate the meta parameters on `device`; a shared parameter stays shared."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, old in module.named_parameters(recurse=False):
            if old.is_meta:
                if old not in made:
                    empty = torch.empty(old.shape, dtype=old.dtype, device=device)
                    made[old] = nn.Parameter(empty, requires_grad=old.requires_grad)
                setattr(module, name, made[old])


@torch.no_grad()
def _fill(parameter: Tensor, weight: Weight, piece: WeightPiece, checkpoint: Checkpoint) -> None:
    if weight.name in (TABLE, HEAD):
        parameter[piece.length :] = 0.0  # padding: rows without a vocabulary entry
    for part, start, stop, at in places(weight, piece):
        dim = 1 - piece.dim if part.transposed else piece.dim
        found = part.turned(checkpoint.read(part.name, dim, start, stop))
        own = parameter.narrow(piece.dim, at, stop - start)
        own.copy_(found)
        check_range(own, found, part.name, checkpoint.path)


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _some(names: Sequence[str]) -> str:
    rest = len(names) - 4
    return ", ".join(names[:4]) + (f" and {rest} more" if rest > 0 else "")
