"""A DeepSpeed checkpoint as logical tensors: float32 masters, moments and step of each parameter.

Stages 1 and 2 shard the flat tensor of a parameter group over the ranks, and stage 3 shards each
parameter. A read locates the elements in the ranks' files and reads only them. Lesson 14.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checkpoint.deepspeed_files import folder, states
from course_lib.checkpoint.deepspeed_files.archive import Archive, Flat
from course_lib.checkpoint.deepspeed_files.states import MASTER
from course_lib.pretrained.header import CheckpointError

MOST_OPEN = 32
ANOTHER = "the files are not from one save, so remove them and copy the step's folder again"


class Logical(NamedTuple):
    """A tensor of the model: its shape and kind, and the position of its elements."""

    shape: tuple[int, ...]
    kind: str  # "trained", "frozen" or "buffer"
    group: int = 0
    start: int = 0  # among the group's elements; at stage 3, among every rank's

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class DeepSpeedFiles:
    """A DeepSpeed checkpoint's `tensors` in the model's order, and its `tied` names. `read(name)`
    and `rows(name, a, b)` read a `quantity` such as "exp_avg". Frozen parameters and buffers have
    only "master". Only the elements that a read returns are in memory.
    Call `close` at the end, or use the object in a `with` statement.
    """

    def __init__(self, source: str | os.PathLike):
        self._open: list[Archive] = []
        try:
            ranks = folder.files_of(folder.step_of(Path(source).expanduser()))
            self.path = ranks.step
            self._models = [self._opened(path) for path in ranks.model]
            self._model = states.model_of(self._models[0])
            self._parts = [states.part_of(self._opened(path)) for path in ranks.optimizer]
            self.stage, self.world = self._parts[0].stage, self._parts[0].world
            self.release = self._parts[0].release or str(self._model.get("ds_version", ""))
            self._check_ranks(ranks)
            self.tied: dict[str, str] = {}
            try:
                self.tensors = self._tensors()
            except (TypeError, AttributeError, KeyError, IndexError) as error:
                raise states.of_another_build(self._models[0], error) from error
            self.quantities = tuple(self._parts[0].flats)
        except BaseException:
            self.close()
            raise

    def read(self, name: str, quantity: str = MASTER) -> Tensor:
        """Read a full tensor in its stored dtype, which is float32 for a trained parameter."""
        shape = self._named(name, quantity).shape
        return self.elements(name, 0, math.prod(shape), quantity).view(shape)

    def rows(self, name: str, start: int, stop: int, quantity: str = MASTER) -> Tensor:
        """Read the rows from `start` to `stop` of a tensor, along its first dim."""
        _, *inner = self._named(name, quantity).shape
        step = math.prod(inner)
        return self.elements(name, start * step, stop * step, quantity).view(-1, *inner)

    def elements(self, name: str, start: int, stop: int, quantity: str = MASTER) -> Tensor:
        """Read elements `start` to `stop` of a tensor in row-major order. Memory is needed only for
        the result."""
        dtype = self.dtype(name, quantity)
        values, at = torch.empty(stop - start, dtype=dtype, device="cpu"), 0
        view = memoryview(values.view(torch.uint8).numpy())
        for archive, flat, first, last in self._spans(name, start, stop, quantity):
            archive.read(flat, first, last, view[at:])
            self._keep_few_open(archive)
            at += (last - first) * dtype.itemsize
        if at != len(view):
            raise CheckpointError(
                f"{self.path}: {len(view) - at} bytes of {name}'s {quantity} are in no file. "
                f"Probably {ANOTHER}"
            )
        return values

    def dtype(self, name: str, quantity: str = MASTER) -> torch.dtype:
        """Return the dtype in which a tensor is stored."""
        logical = self._named(name, quantity)
        if logical.kind == "trained":
            return self._parts[0].flats[quantity][logical.group].dtype
        return self._plain(self._models[0], name).dtype

    def scalars(self, name: str) -> dict[str, float]:
        """Read the optimizer's scalars for a trained parameter, for example `step`."""
        group = self._named(name, "scalars").group
        if self.tensors[name].kind != "trained":
            return {}
        archive, kept = self._parts[0].archive, self._parts[0].scalars[group]
        return {key: archive.number(value, f"{key} of {name}") for key, value in kept.items()}

    @property
    def steps(self) -> int | None:
        """The number of steps that the run had completed."""
        return self._model.get("global_steps")

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def __enter__(self) -> DeepSpeedFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _opened(self, path: Path) -> Archive:
        archive = Archive(path)
        self._keep_few_open(archive)
        return archive

    def _keep_few_open(self, archive: Archive) -> None:
        """Limit open files, because 512 ranks have 1024 files, a process's usual limit."""
        self._open = [one for one in self._open if one is not archive] + [archive]
        while len(self._open) > MOST_OPEN:
            self._open.pop(0).close()

    def _check_ranks(self, ranks: folder.Ranks) -> None:
        """Check that all files come from one save and have the same stage and quantities."""
        first = self._parts[0]
        if len(self._parts) != self.world:
            raise CheckpointError(
                f"{first.archive.path} is one of {self.world} ranks' files, but {self.path} has "
                f"{len(self._parts)}; {ANOTHER}"
            )
        for part in self._parts:
            same = part.stage == first.stage and part.world == first.world
            if not same or part.flats.keys() != first.flats.keys():
                raise CheckpointError(
                    f"{part.archive.path} is of stage {part.stage} on {part.world} ranks, with "
                    f"{', '.join(part.flats)}, but {first.archive.path.name} is of stage "
                    f"{first.stage} on {first.world}, with {', '.join(first.flats)}; {ANOTHER}"
                )
        if self.stage == 3 and len(self._models) != self.world:
            raise CheckpointError(
                f"{self.path}: {self.world} ranks saved at stage 3, but only {len(self._models)} "
                f"model files are here (the last is {ranks.model[-1].name}). Copy the missing "
                "files"
            )

    def _tensors(self) -> dict[str, Logical]:
        """Return every tensor by name in the model's order; tied tensors appear only once."""
        tensors: dict[str, Logical] = {}
        groups, start = self._model["param_shapes"], 0
        for number, group in enumerate(groups):
            start = start if self.stage == 3 else 0
            for place, (name, shape) in enumerate(group.items()):
                tensors[name] = Logical(tuple(shape), "trained", number, start)
                start += self._step(tensors[name], place)
            if self.stage < 3:
                self._check_length(number, start)
        if self.stage == 3:
            self._check_length(None, start)
            tensors = {name: self._in_sub_group(one) for name, one in tensors.items()}
        elif len(groups) != len(self._parts[0].flats[MASTER]):
            raise CheckpointError(
                f"{self.path} has {len(groups)} groups of parameters but "
                f"{len(self._parts[0].flats[MASTER])} flat groups; {ANOTHER}"
            )
        tied, frozen = self._model["shared_params"] or {}, self._model["frozen_param_shapes"] or {}
        for name, x in self._model["module"].items():
            if name in tensors or name in tied:
                continue
            if name in self._model["buffer_names"]:
                tensors[name] = Logical(tuple(x.shape), "buffer")
            elif self.stage < 3 or name in frozen:
                tensors[name] = Logical(tuple(frozen.get(name, x.shape)), "frozen")
        order = {name: at for at, name in enumerate(self._model["module"])}
        self.tied = {name: of for name, of in tied.items() if of in tensors}
        return dict(sorted(tensors.items(), key=lambda pair: order.get(pair[0], len(order))))

    def _step(self, logical: Logical, place: int) -> int:
        """Count the elements from a parameter's start to the next parameter's start."""
        if self.stage == 3:
            return -(-logical.count // self.world)
        gaps = self._parts[0].gaps
        return logical.count + (gaps[logical.group][place] if gaps else 0)

    def _check_length(self, group: int | None, needed: int) -> None:
        """Check that the ranks' flat tensors hold the parameters' elements plus at most padding."""
        for quantity in self._parts[0].flats:
            if group is None:
                lengths = [sum(f.count for f in part.flats[quantity]) for part in self._parts]
                wrong = [rank for rank, length in enumerate(lengths) if length != needed]
            else:
                total = sum(part.flats[quantity][group].count for part in self._parts)
                room = 2 * self.world  # DeepSpeed pads a group to a multiple of it
                wrong = [0] if -(-total // room) != -(-needed // room) else []
            if wrong:
                raise CheckpointError(
                    f"in {self._parts[wrong[0]].archive.path}, the parameters that "
                    f"{self._models[0].path.name} lists need {needed} elements of {quantity}"
                    f"{' of each rank' if group is None else f' in group {group}'}, but there are "
                    f"{lengths[wrong[0]] if group is None else total}; {ANOTHER}"
                )

    def _in_sub_group(self, logical: Logical) -> Logical:
        """Find a parameter's sub-group and start in it, since stage 3 counts across sub-groups."""
        start = logical.start
        for number, flat in enumerate(self._parts[0].flats[MASTER]):
            if start < flat.count:
                return logical._replace(group=number, start=start)
            start -= flat.count
        return logical  # no elements

    def _named(self, name: str, quantity: str) -> Logical:
        if name not in self.tensors:
            also = f" because it is tied to {self.tied[name]}" if name in self.tied else ""
            raise CheckpointError(f"{self.path} has no tensor {name!r}{also}")
        logical = self.tensors[name]
        if quantity not in (*self.quantities, "scalars") or (
            logical.kind != "trained" and quantity not in (MASTER, "scalars")
        ):
            raise CheckpointError(
                f"{self.path}: {name} is {logical.kind} and has no {quantity}, only "
                f"{', '.join(self.quantities) if logical.kind == 'trained' else MASTER}"
            )
        return logical

    def _spans(
        self, name: str, start: int, stop: int, quantity: str
    ) -> Iterator[tuple[Archive, Flat, int, int]]:
        """Yield (file, its flat tensor, first and last element) for these elements, in order."""
        logical = self._named(name, quantity)
        if logical.kind == "trained":
            flats = [(part.archive, part.flats[quantity][logical.group]) for part in self._parts]
        else:
            third = self.stage == 3 and logical.kind == "frozen"
            models = self._models if third else self._models[:1]
            flats = [(model, model.flat(self._plain(model, name), name)) for model in models]
        if self.stage == 3 and logical.kind != "buffer":
            each = -(-logical.count // self.world)
            ends = [(logical.start, logical.start + each)] * self.world
        else:
            ends = [(0, flat.count) for _, flat in flats]
            start, stop = start + logical.start, stop + logical.start
        begin = 0  # in the concatenation of the ranks' elements
        for (archive, flat), (first, last) in zip(flats, ends, strict=True):
            a, b = max(start, begin), min(stop, begin + last - first)
            if a < b:
                yield archive, flat, first + a - begin, first + b - begin
            begin += last - first

    def _plain(self, model: Archive, name: str) -> Tensor:
        """Return a frozen parameter (at stage 3, one rank's part of it) or a buffer."""
        fragments = model.content.get("frozen_param_fragments") or {}
        return fragments[name] if name in fragments else model.content["module"][name]
