"""What a checkpoint of an engine consists of: weights, master weights, optimizer states; scalars.

Asked of all ranks, since a rank of a sharded engine has parts of some parameters only. What cannot
go into a logical tensor is refused here, before a file is begun. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

from course_lib.checkpoint.exchange import merged, union
from course_lib.checkpoint.files import SHARD_BYTES, FileSet
from course_lib.checkpoint.logical import Tensor, stored_as, tensors_of, turned
from course_lib.checkpoint.pen import Takes
from course_lib.layout import Box
from course_lib.pretrained.header import CheckpointError
from course_lib.zero import Engine

MODEL, OPTIMIZER = "model", "optimizer"  # the two sets of files
VALUE, MASTER = "value", "master"


class Label(NamedTuple):
    """`blocks.0.mlp.up.weight[0:128]:exp_avg`, as an engine calls its own tensors."""

    name: str
    start: int
    stop: int
    key: str

    @classmethod
    def of(cls, text: str) -> Label:
        label, _, key = text.rpartition(":")
        name, _, span = label.rpartition("[")
        start, _, stop = span.rstrip("]").partition(":")
        return cls(name, int(start), int(stop), key)


class Planned:
    """The files of a checkpoint, and how this rank's tensors go into them; all ranks make one."""

    def __init__(self, engine: Engine, mesh: DeviceMesh, most: float = SHARD_BYTES):
        self.groups = [mesh.get_group(name) for name in mesh.mesh_dim_names]
        self.dtypes = {name: p.dtype for name, p in engine.module.named_parameters()}

        def kinds() -> dict[str, dict]:
            self.tensors = tensors_of(engine, mesh)
            return _kinds(engine.own_slots(), self.dtypes)

        # name → key → dtype, of all ranks
        self.keys = merged(self.groups, kinds, union)
        model = {}
        for name, tensor in self.tensors.items():
            parts = tensor.weight.parts if tensor.weight else [None]
            for stored in parts:
                shape = stored.shape(tensor.weight) if stored else tensor.shape
                model[stored.name if stored else name] = self.dtypes[name], shape
        self.buffers = _buffers(engine.module)
        model |= {name: (x.dtype, tuple(x.shape)) for name, x in self.buffers.items()}
        states = {
            f"{name}:{key}": (dtype, self.tensors[name].shape)
            for name in self.tensors
            for key, dtype in self.keys.get(name, {}).items()
        }
        self.files = {
            MODEL: FileSet(MODEL, model, most),
            OPTIMIZER: FileSet(OPTIMIZER, states, most),
        }

    def write(self, label: Label, x: torch.Tensor, pens: Mapping[str, Takes]) -> None:
        """Write what this rank answers for of one of its tensors."""
        tensor = self.tensors[label.name]
        flat = x.detach().reshape(-1)
        if label.key == VALUE:
            dtype = self.dtypes[label.name]
            for box, elements in _answered(tensor, label, flat):
                _put_weight(pens[MODEL], tensor, box, elements.to(dtype))
                if flat.dtype != dtype:
                    pens[OPTIMIZER].put(f"{label.name}:{MASTER}", box, elements)
        else:
            for box, elements in _answered(tensor, label, flat):
                pens[OPTIMIZER].put(f"{label.name}:{label.key}", box, elements)

    def frozen(self, engine: Engine) -> Iterator[tuple[Label, torch.Tensor]]:
        """The parameters that no optimizer's part has: below stage 3 the frozen ones."""
        parts = {slot.name for slot in engine.partition.slots()}
        for name, parameter in engine.module.named_parameters():
            if name not in parts:
                yield Label(name, 0, parameter.numel(), VALUE), parameter.detach()


def _kinds(slots: Mapping, dtypes: Mapping[str, torch.dtype]) -> dict[str, dict]:
    kinds: dict[str, dict] = {}
    values = {text.rpartition(":")[0]: slot for text, slot in slots.items() if _is_value(text)}
    for text, (dtype, shape) in slots.items():
        name, _, _, key = Label.of(text)
        if key == VALUE:
            if dtype != dtypes[name]:
                kinds.setdefault(name, {})[MASTER] = dtype
        elif key == "step" and tuple(shape) == ():
            continue  # a count, also where the parameter is a single number itself
        elif tuple(shape) == tuple(values[text.rpartition(":")[0]][1]):
            kinds.setdefault(name, {})[key] = dtype
        elif tuple(shape) != ():
            raise CheckpointError(
                f"the optimizer keeps {key!r} of shape {tuple(shape)} for {name}, which is neither "
                "an element for each of its own nor a single number: at another layout it "
                "is not known what belongs where. Use one of torch's elementwise optimizers"
            )
    return kinds


def _is_value(text: str) -> bool:
    return text.endswith(f":{VALUE}")


def _answered(
    tensor: Tensor, label: Label, flat: torch.Tensor
) -> Iterator[tuple[Box, torch.Tensor]]:
    """The boxes that this rank writes, each with its elements in the box's shape."""
    for part in tensor.parts(label.start, label.stop):
        at = part.start - label.start
        for box in part.boxes:
            if part.counts:
                yield box, flat[at : at + box.numel].view(box.size)
            at += box.numel


def _put_weight(pen: Takes, tensor: Tensor, box: Box, elements: torch.Tensor) -> None:
    for stored, inner, start, stop in stored_as(tensor, box):
        if stored is None:
            pen.put(tensor.name, inner, elements)
        elif stored.transposed:
            pen.put(stored.name, turned(inner), elements[start:stop].t())
        else:
            pen.put(stored.name, inner, elements[start:stop])


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a state_dict has beside the parameters."""
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    state = module.state_dict(keep_vars=True)
    return {k: x for k, x in state.items() if k not in names and isinstance(x, torch.Tensor)}
