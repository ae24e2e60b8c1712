"""Offload to files: what a rank updates, and the states of it, bucket by bucket through memory.

While one bucket steps the next is read and the one before is written, in three sets of memory; a
step counts as done when the files are synced. Lesson 12 derives it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.collectives.call import Group
from course_lib.memory import OutOfMemory, tier
from course_lib.zero.loaded import take_over
from course_lib.zero.offload.aio import layer
from course_lib.zero.offload.files import buffer
from course_lib.zero.offload.folder import Folder
from course_lib.zero.offload.host import HostStore, Incoming, Own, on_host, real
from course_lib.zero.offload.layout import Layout
from course_lib.zero.offload.lending import Lender, as_large, check_lendable, states_of
from course_lib.zero.offload.pipeline import SETS, Kept, through_memory
from course_lib.zero.offload.plan import Plan
from course_lib.zero.offload.together import together
from course_lib.zero.offload.units import FileStore, Place, Reads
from course_lib.zero.partition import Piece
from course_lib.zero.shards import Copies

IN_FILE = object()  # stands for a state whose numbers the file has


class FileHome:
    """The parts of this rank in files; `parameters` says where the units' shards are."""

    copied = False  # a step brings each bucket to its shard by itself

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        groups: Sequence[Group],
        device: torch.device,
        *,
        master: bool,
    ):
        with tier("host"):  # what is tried is where it will be
            check_lendable(optimizer)
        self.groups, self.device, self.master = list(groups), device, master
        self.parameters = plan.parameters
        self.group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
        self.io = layer(plan.io)
        self.folder = Folder(plan.folder, groups, take_over=plan.take_over)
        self.incoming, self.reads = Incoming(device), Reads(self.io, device)
        self.kept: dict[int, Kept] = {}
        self._optimizer, self._error = optimizer, None
        self._states: dict[tuple[int, torch.dtype], dict[str, torch.dtype]] = {}
        self._outlines: dict[torch.dtype, Tensor] = {}
        self._sets: list[Tensor] = []

    @property
    def set_bytes(self) -> int:
        """The largest bucket's file: what one of the sets has to hold."""
        return max((one.layout.nbytes for one in self.kept.values()), default=0)

    def memory(self) -> list[Tensor]:
        """The memory that files go through, and the states that are too small for a file."""
        small = [x for kept in self.kept.values() for one in kept.small for x in one.values()]
        return [*self._sets, *self.reads.memory(), *(x for x in small if isinstance(x, Tensor))]

    @property
    def file_bytes(self) -> int:
        return sum(file.nbytes for file in self.folder.files)

    def store(self) -> HostStore | FileStore | None:
        if self.parameters == "nvme":
            return FileStore(self.reads)
        return HostStore(self.device) if self.parameters == "cpu" else None

    # ---- at the start
    @torch.no_grad()
    def keep(
        self, i: int, pieces: Sequence[Piece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        """Put what the optimizer is to update of bucket i into a file; outlines stand for it."""
        dtype = torch.float32 if self.master else shard.dtype
        if pieces:
            states: dict[str, torch.dtype] = {}
            spans: dict[str, list[tuple[int, int]]] = {}
            for piece in pieces:
                own = self._states_of(piece, dtype)
                states |= own
                for name in own:
                    spans.setdefault(name, []).append((piece.at, piece.at + piece.numel))
            in_files = isinstance(store, FileStore)
            half = shard.dtype if self.master and in_files else None
            layout = Layout(real(pieces), dtype, states, half, spans)
            try:
                kept = Kept(layout, self.folder.make(i, layout.nbytes), [{} for _ in pieces])
                self._write(kept, shard)
                self.kept[i] = kept
                if in_files:
                    first = layout.kept_bytes if half else 0
                    nbytes = layout.half_bytes if half else layout.values_bytes
                    store.place = Place(kept.file, first, nbytes, layout.count)
            except (OSError, OutOfMemory) as error:
                self._error = self._error or error
        return [nn.Parameter(self._outline(piece.numel, dtype)) for piece in pieces]

    def ready(self) -> None:
        """All buckets have their files, on all ranks; or none has, and all of them say why."""
        try:
            together(self._error, self.groups, ". The engine was not made, and its files are gone")
        except OSError:
            self.close()
            raise

    def _write(self, kept: Kept, shard: Tensor) -> None:
        """A shard's numbers into the file, beside whatever states are there."""
        layout = kept.layout
        memory = buffer(layout.values_bytes + layout.half_bytes)
        small = Layout(layout.count, layout.dtype, {}, layout.half)
        numbers = shard[: layout.count]
        small.values(memory).copy_(numbers)
        under_way = [self.io.write(kept.file, 0, memory[: layout.values_bytes])]
        if layout.half is not None:
            small.halves(memory).copy_(numbers)
            rest = memory[layout.values_bytes :]
            under_way.append(self.io.write(kept.file, layout.kept_bytes, rest))
        for pending in under_way:
            pending.wait()
        self.io.sync([kept.file]).wait()

    def _states_of(self, piece: Piece, dtype: torch.dtype) -> dict[str, torch.dtype]:
        group = self.group_of.get(piece.slot.parameter)
        if group is None or not piece.slot.parameter.requires_grad:  # frozen: never updated
            return {}
        if (id(group), dtype) not in self._states:
            with tier("host"):
                self._states[id(group), dtype] = states_of(self._optimizer, group, dtype)
        return self._states[id(group), dtype]

    def _outline(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A shape without memory, for a part to take its gradient in while the file has it."""
        if dtype not in self._outlines:
            self._outlines[dtype] = on_host(1, dtype, torch.device("cpu")).zero_()
        return self._outlines[dtype].expand(numel)

    @torch.no_grad()
    def take_in(self, optimizer: Optimizer, shards: Copies) -> None:
        """States that the optimizer has made before its first step go to the files."""
        error = None
        try:
            for i, kept in self.kept.items():
                if any(part in optimizer.state for _, part in shards.own[i]):
                    memory = buffer(kept.layout.nbytes)
                    self.io.read(kept.file, 0, memory).wait()
                    self._update(i, memory, Lender(optimizer), shards, _nothing)
                    self.io.write(kept.file, 0, memory).wait()
        except OSError as met:
            error = met
        together(error, self.groups)

    # ---- a step
    def step(self, optimizer: Optimizer, shards: Copies) -> None:
        """Update bucket by bucket; raise on all ranks what a file of any of them has met."""
        self._done, error = 0, None
        try:
            shards.take_over()
            self._update_all(optimizer, shards)
        except Exception as met:
            error = met
        of = f"{self._done} of this rank's {len(self.kept)} buckets were updated before"
        together(
            error,
            self.groups,
            f". {of}: the step is neither done nor undone, and no weight was sent to another rank. "
            "This engine refuses to go on; begin again from the last checkpoint",
        )
        shards.gather()

    def _update_all(self, optimizer: Optimizer, shards: Copies) -> None:
        self.reads.drop()
        todo = [i for i in self.kept if any(part.grad is not None for _, part in shards.own[i])]
        if not todo:
            optimizer.step()  # which has nothing to do; who counts its calls still sees one
            return
        if not self._sets:
            count = min(SETS, len(self.kept))
            pinned = self.device.type == "cuda"
            self._sets = [buffer(self.set_bytes, pinned=pinned) for _ in range(count)]
        lender = Lender(optimizer)

        def update(i: int, memory: Tensor) -> None:
            first, last = i == todo[0], i == todo[-1]
            self._update(i, memory, lender, shards, optimizer.step, first=first, last=last)
            self._done += 1

        through_memory(self.io, self.kept, todo, self._sets, update)

    def _update(self, i, memory: Tensor, lender: Lender, shards: Copies, step, **place) -> None:
        """Lend the optimizer the parts and states of bucket i, which lie in `memory`."""
        kept, own, state = self.kept[i], shards.own[i], lender.optimizer.state
        layout, values = kept.layout, kept.layout.values(memory)
        try:
            for (piece, part), small in zip(own, kept.small, strict=True):
                part.data = piece.of(values)
                if small:
                    state[part] = {
                        name: _state(layout, memory, name, piece) if x is IN_FILE else x
                        for name, x in small.items()
                    }
            with tier("host"):
                lender.lend({part for _, part in own}, step, **place)
            for number, (piece, part) in enumerate(own):
                _hold(part, piece.of(values))
                new = state.pop(part, {})
                for name, x in new.items():
                    in_file = layout.has(name, piece.at, piece.at + piece.numel)
                    if in_file and as_large(x, part):
                        _hold(x, _state(layout, memory, name, piece))
                        new[name] = IN_FILE
                kept.small[number] = new
        finally:
            for _, part in own:
                state.pop(part, None)
                part.data = self._outline(part.numel(), part.dtype)
        if layout.half is not None:
            layout.halves(memory).copy_(values)
        elif self.parameters != "nvme":
            shard = shards.units[-1 - i].shard
            shard[: layout.count].copy_(values)

    # ---- from outside
    def rewritten(self, i: int, own: Own, shard: Tensor) -> None:
        """A shard was changed: the file takes over what differs."""
        if i not in self.kept:
            return
        kept = self.kept[i]
        memory = buffer(kept.layout.values_bytes)
        self.io.read(kept.file, 0, memory).wait()
        values = kept.layout.values(memory)
        take_over(values, shard[: kept.layout.count])
        self._write(kept, values)

    def raise_together(self, error: Exception | None) -> None:
        """What one rank has met is every rank's error; all of them have to call this."""
        together(error, self.groups)

    def close(self) -> None:
        """End the threads and remove the files."""
        self.incoming.land()
        self.reads.closed = True
        self.io.close()
        self.folder.close()
        self._sets = []


def _state(layout: Layout, memory: Tensor, name: str, piece: Piece) -> Tensor:
    return layout.state_of(memory, name, piece.at, piece.at + piece.numel)


def _nothing() -> None:
    """A step that changes nothing."""


def _hold(x: Tensor, place: Tensor) -> None:
    """Have x's numbers in `place`, where they are mostly already."""
    if x.data_ptr() != place.data_ptr():
        place.copy_(x)
