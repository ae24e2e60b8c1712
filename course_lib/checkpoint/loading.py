"""A checkpoint loaded into an engine of any layout: each rank reads only the boxes of its part.

Names and shapes are compared before anything changes, and checksums while bytes are read. A float32
run can continue in 16 bits, and vice versa, with the same masters and moments. Lesson 14.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from course_lib.checkpoint import checksums, folder
from course_lib.checkpoint.contents import MASTER, VALUE, Label
from course_lib.checkpoint.engine_record import check_groups, goes_on, record_of
from course_lib.checkpoint.files import of_all
from course_lib.checkpoint.logical import buffers_of, stored_as, stored_shapes, tensors_of
from course_lib.checkpoint.open_checkpoint import KINDS, OpenCheckpoint
from course_lib.checkpoint.shared_errors import agreed, merged
from course_lib.checkpoint.streams import restore_streams
from course_lib.pretrained.header import CheckpointError
from course_lib.zero import Engine

IN_PART = "the weights of this engine may be partly replaced, so create it again; "


def load(
    path: Path | str,
    engine: Engine,
    mesh: DeviceMesh,
    *,
    counters: bool = True,
    streams: bool = True,
    gather: bool = False,
    verify: bool = True,
) -> dict:
    """Load weights, optimizer states and counters into an engine, whatever the sharding was when
    they were saved, and restore the random streams. Return the record with the number of tensor
    bytes that this rank read ("read_bytes"). Every rank calls this function.

    At stages 1 and 2 every rank reads all weights, because its model is replicated. With `gather`,
    or with master weights, it reads its own part and gathers the rest, which is faster if the disk
    is slow and the links are fast. Without `verify` no tensor checksum is computed; a load from
    memory is then a tenth faster. If names, shapes or the optimizer differ, all ranks raise and
    nothing has changed. If bytes are damaged, all ranks raise, and the engine must be created
    again.
    """
    path = Path(path)
    groups = [mesh.get_group(name) for name in mesh.mesh_dim_names]

    def not_read(error: OSError) -> str:
        return f"{error.filename} cannot be read ({error.strerror}); {folder.remedy(path)}"

    with contextlib.ExitStack() as stack:
        with agreed(groups, not_read):
            record = record_of(path)
            if torch.distributed.get_rank() == 0:  # the small files that ranks do not otherwise use
                small = checksums.read(path, lambda: folder.remedy(path))
                checksums.check(path, small, lambda: folder.remedy(path))
        with agreed(groups, not_read):
            saved = stack.enter_context(OpenCheckpoint(path, verify=verify))
            reading = Reading(saved, record, engine, mesh)
            if counters:
                check_groups(path, record, engine)
        try:
            # Checksums cover the masters. The model's weights are rounded from them, and the other
            # ranks' weights are gathered, since no rank reads those 16-bit values for its own part.
            masters = any(name.endswith(f":{MASTER}") for name in saved.optimizer.slots)
            others = None if gather or masters else reading.read_others
            engine.put_own(reading.slots, reading.read, others, reading.read_into)
        except (OSError, ValueError) as error:  # the same on all ranks
            text = getattr(error, "strerror", None) or error
            raise CheckpointError(f"{path}: {text}") from error

        def rest() -> dict[str, dict]:
            reading.into_module()
            return saved.report()

        saved.compare(merged(groups, rest, of_all, not_read), IN_PART)
        record["read_bytes"] = sum(part.bytes for part in saved.parts)
    if counters:
        goes_on(engine, record["engine"])
    if streams and record.get("streams"):
        with agreed(groups, not_read):
            restore_streams(record["streams"], mesh)
    return record


class Reading:
    """The tensors that this rank reads from a checkpoint; `put_own` needs `slots` and `read`."""

    def __init__(self, saved: OpenCheckpoint, record: Mapping, engine: Engine, mesh: DeviceMesh):
        self.saved, self.engine = saved, engine
        self.scalars: Mapping = record["scalars"]
        self.tensors = tensors_of(engine, mesh)
        self._check_model()
        states: dict[str, dict[str, torch.dtype]] = {}
        for name, slot in saved.optimizer.slots.items():
            of, _, key = name.rpartition(":")
            if key != MASTER:
                states.setdefault(of, {})[key] = KINDS[slot.dtype]
        self.slots: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for text, (dtype, shape) in engine.own_slots().items():
            label = Label.of(text)
            if label.key != VALUE:
                continue
            self.slots[text] = dtype, shape
            for key, state in states.get(label.name, {}).items():
                kind = self._kind(label.name, state, dtype)
                self.slots[text.removesuffix(VALUE) + key] = kind, shape
            for key, (_, kind) in self.scalars.get(label.name, {}).items():
                self.slots[text.removesuffix(VALUE) + key] = getattr(torch, kind), ()

    def read(self, text: str) -> torch.Tensor:
        """Read one of the rank's tensors by the engine's name for it."""
        label, (dtype, shape) = Label.of(text), self.slots[text]
        scalar = self.scalars.get(label.name, {}).get(label.key)
        if scalar is not None:
            return torch.tensor(scalar[0], dtype=dtype, device="cpu")
        flat = torch.empty(label.stop - label.start, dtype=dtype, device="cpu")
        self._fill(label, flat)
        return flat.view(shape)

    def read_into(self, text: str, place: torch.Tensor) -> bool:
        """Read one of the rank's tensors directly into its memory; return False for a scalar."""
        label = Label.of(text)
        if label.key in self.scalars.get(label.name, {}):
            return False
        self._fill(label, place.view(-1))
        return True

    def read_others(self, name: str, start: int, stop: int, place: torch.Tensor) -> None:
        """Read a weight's elements that belong to a different rank into the model's memory."""
        direct = place.device.type == "cpu"
        flat = place if direct else torch.empty(place.shape, dtype=place.dtype, device="cpu")
        self._fill(Label(name, start, stop, VALUE), flat, of_this_rank=False)
        if not direct:
            place.copy_(flat)

    @torch.no_grad()
    def into_module(self) -> None:
        """Read buffers and, below stage 3, frozen parameters, which are in no optimizer part."""
        module = self.engine.module
        parts = {slot.name for slot in self.engine.partition.slots()}
        for name, parameter in module.named_parameters():
            if name not in parts:
                flat = torch.empty(parameter.numel(), dtype=parameter.dtype, device="cpu")
                self._fill(Label(name, 0, parameter.numel(), VALUE), flat)
                parameter.copy_(flat.view(parameter.shape))
        first = torch.distributed.get_rank() == 0
        for name, x in buffers_of(module).items():
            x.copy_(self.saved.model.read(name, counts=first))

    def _fill(self, label: Label, flat: torch.Tensor, *, of_this_rank: bool = True) -> None:
        """Read the boxes of a rank's tensor; only boxes that it would write enter the checksum."""
        tensor = self.tensors[label.name]
        if tensor.padded:
            flat.zero_()
        key = label.key
        if key == VALUE and self._from_master(tensor.name, flat.dtype):
            key = MASTER
        for box, at, counts in tensor.boxes(label.start, label.stop):
            place, counts = flat[at : at + box.numel].view(box.size), counts and of_this_rank
            if key != VALUE:
                self.saved.optimizer.read_into(f"{label.name}:{key}", box, place, counts=counts)
                continue
            for name, inner, rows, turned in stored_as(tensor, box):
                if turned:
                    place[rows].copy_(self.saved.model.read(name, inner, counts=counts).t())
                else:
                    self.saved.model.read_into(name, inner, place[rows], counts=counts)

    def _from_master(self, name: str, dtype: torch.dtype) -> bool:
        master = self.saved.optimizer.slots.get(f"{name}:{MASTER}")
        return master is not None and dtype != self._stored(name)

    def _stored(self, name: str) -> torch.dtype:
        """Return the dtype in which a parameter's weights are stored."""
        tensor = self.tensors[name]
        stored = tensor.weight.parts[0].name if tensor.weight else name
        return KINDS[self.saved.model.slots[stored].dtype]

    def _kind(self, name: str, state: torch.dtype, part: torch.dtype) -> torch.dtype:
        """Return a state's dtype: the part's if the saved state had the updated tensor's dtype."""
        master = self.saved.optimizer.slots.get(f"{name}:{MASTER}")
        updated = KINDS[master.dtype] if master is not None else self._stored(name)
        return part if state == updated else state

    def _check_model(self) -> None:
        """Refuse a checkpoint of a different model and name the first tensor that differs."""
        slots = self.saved.model.slots
        wanted = {name: shape for name, (_, shape) in stored_shapes(self.tensors).items()}
        wanted |= {name: tuple(x.shape) for name, x in buffers_of(self.engine.module).items()}
        for name in [*wanted, *slots]:
            here = wanted.get(name)
            there = tuple(slots[name].shape) if name in slots else None
            if here != there:
                raise CheckpointError(
                    f"{self.saved.path} is of a different model: {name} "
                    f"{_differs(name, there, here)}. Create the engine with the saved model"
                )


TABLES = ("wte.weight", "embed_tokens.weight", "lm_head.weight", "tokens.weight", "head.weight")


def _differs(name: str, there: tuple | None, here: tuple | None) -> str:
    if there is None:
        return f"of shape {here} is missing there"
    if here is None:
        return f"of shape {there} is there, but the model here has no such tensor"
    more = ""
    if name.endswith(TABLES) and there[1:] == here[1:]:
        more = " (is the vocabulary padded to a multiple of a different number?)"
    return f"has shape {there} there and {here} here{more}"
