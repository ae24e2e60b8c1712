"""The contents of an engine's checkpoint: weights, master weights, optimizer states, scalars.

All ranks exchange their lists, since a rank of a sharded engine has parts of only some parameters.
States that do not fit a logical tensor are refused here, before a file is created. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

from course_lib.checkpoint.box_writer import Takes
from course_lib.checkpoint.logical import buffers_of, stored_as, stored_shapes, tensors_of
from course_lib.checkpoint.shared_errors import merged, union
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.writer import FileSet
from course_lib.zero import Engine

MODEL, OPTIMIZER = "model", "optimizer"  # the two sets of files
VALUE, MASTER = "value", "master"


class Label(NamedTuple):
    """An engine's name for one of its tensors, such as `blocks.0.mlp.up.weight[0:128]:exp_avg`."""

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


class Contents:
    """The files of a checkpoint and this rank's tensors; every rank creates one instance."""

    def __init__(self, engine: Engine, mesh: DeviceMesh, most: float):
        self.groups = [mesh.get_group(name) for name in mesh.mesh_dim_names]
        self.dtypes = {name: p.dtype for name, p in engine.module.named_parameters()}

        def kinds() -> dict[str, dict]:
            self.tensors = tensors_of(engine, mesh)
            return _kinds(engine.own_slots(), self.dtypes)

        # name → key → dtype, over all ranks
        self.keys = merged(self.groups, kinds, union)
        shapes = stored_shapes(self.tensors)
        model = {name: (self.dtypes[of], shape) for name, (of, shape) in shapes.items()}
        self.buffers = buffers_of(engine.module)
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
        """Write the elements of a local tensor for which this rank is responsible."""
        tensor, flat = self.tensors[label.name], x.detach().reshape(-1)
        dtype, key = self.dtypes[label.name], label.key
        for box, at, counts in tensor.boxes(label.start, label.stop):
            if not counts:
                continue
            elements = flat[at : at + box.numel].view(box.size)
            if label.key == VALUE:
                for name, inner, rows, turned in stored_as(tensor, box):
                    part = elements[rows].to(dtype)
                    pens[MODEL].put(name, inner, part.t() if turned else part)
                if flat.dtype == dtype:
                    continue
                key = MASTER
            pens[OPTIMIZER].put(f"{label.name}:{key}", box, elements)

    def frozen(self, engine: Engine) -> Iterator[tuple[Label, torch.Tensor]]:
        """Yield the parameters that are in no optimizer part: frozen parameters below stage 3."""
        parts = {slot.name for slot in engine.partition.slots()}
        for name, parameter in engine.module.named_parameters():
            if name not in parts:
                yield Label(name, 0, parameter.numel(), VALUE), parameter.detach()


def _kinds(slots: Mapping, dtypes: Mapping[str, torch.dtype]) -> dict[str, dict]:
    kinds: dict[str, dict] = {}
    for text, (dtype, shape) in slots.items():
        name, start, stop, key = Label.of(text)
        value = slots[f"{name}[{start}:{stop}]:{VALUE}"][1]
        if key == VALUE:
            if dtype != dtypes[name]:
                kinds.setdefault(name, {})[MASTER] = dtype
        elif key == "step" and tuple(shape) == ():
            continue  # a count, even if the parameter itself is a scalar
        elif tuple(shape) == tuple(value):
            kinds.setdefault(name, {})[key] = dtype
        elif tuple(shape) != ():
            raise CheckpointError(
                f"the optimizer keeps {key!r} of shape {tuple(shape)} for {name}. It is neither "
                "elementwise nor a scalar, so it cannot be sharded differently. Use one of torch's "
                "elementwise optimizers"
            )
    return kinds
