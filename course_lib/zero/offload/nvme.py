"""Offload to files: a rank's parameters and states pass through memory bucket by bucket.

While one bucket is updated, the next is read and the previous one written, in three sets of memory.
A step is complete when the files are synced. Lesson 12 derives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.collectives.call import Group
from course_lib.memory import OutOfMemory, tier
from course_lib.meta import host_of
from course_lib.zero.offload.file_bucket import FileBucket, check_lendable, in_memory, lend
from course_lib.zero.offload.file_layout import FileLayout
from course_lib.zero.offload.files import CountedFiles, Files, buffer
from course_lib.zero.offload.folder import Folder, Unwritten
from course_lib.zero.offload.host import AwayHome, HostStore, on_host, real, updating
from course_lib.zero.offload.pipeline import SETS, through_memory
from course_lib.zero.offload.plan import OffloadPlan
from course_lib.zero.offload.shared_errors import together
from course_lib.zero.offload.units import FilePlace, FileStore, Reads
from course_lib.zero.optimizer_home import Own
from course_lib.zero.optimizer_parts import states_of
from course_lib.zero.outside_changes import take_over
from course_lib.zero.partition import BucketPiece


class FileHome(AwayHome):
    """The parts of this rank in files; `parameters` is the place of the units' shards."""

    copied = False  # a step itself copies each bucket to its shard

    def __init__(
        self,
        optimizer: Optimizer | None,
        plan: OffloadPlan,
        groups: Sequence[Group],
        device: torch.device,
        *,
        master: bool,
    ):
        if optimizer is not None:  # without one, weights are never updated
            check_lendable(optimizer)
        super().__init__(device, master=master, parameters=plan.parameters)
        self.groups = list(groups)
        param_groups = optimizer.param_groups if optimizer is not None else []
        self.group_of = {p: group for group in param_groups for p in group["params"]}
        if device.type == "meta":  # there are no values to put into files
            self.io, self.folder = CountedFiles(), Unwritten(plan.folder)
        else:
            self.folder = Folder(plan.folder, groups, take_over=plan.take_over)
            self.io = Files() if plan.io == "threads" else plan.io
        self.reads = Reads(self.io, device)
        self.kept: dict[int, FileBucket] = {}
        self._optimizer, self._error = optimizer, None
        self._states: dict[tuple[int, torch.dtype], dict[str, torch.dtype]] = {}
        self._outlines: dict[torch.dtype, Tensor] = {}
        self._sets: list[Tensor] = []
        self._done = 0  # buckets in this update

    @property
    def set_bytes(self) -> int:
        """The size of the largest bucket's file, which each set must hold."""
        return max((one.layout.nbytes for one in self.kept.values()), default=0)

    def memory(self) -> list[Tensor]:
        """Return the memory for file transfers, and the states that are too small for a file."""
        return [*self._sets, *self.reads.memory(), *in_memory(self.kept.values())]

    @property
    def file_bytes(self) -> int:
        return sum(file.nbytes for file in self.folder.files)

    @contextmanager
    def together(self, *, update: bool = False) -> Iterator[None]:
        self._done, error = 0, None
        try:
            yield
        except Exception as met:
            error = met
        how_far = (
            f". {self._done} of this rank's {len(self.kept)} buckets had been updated, so the step "
            "is incomplete, and no weight was sent to a different rank. This engine cannot "
            "continue; start again from the last checkpoint"
        )
        together(error, self.groups, how_far if update else "")

    def store(self) -> HostStore | FileStore | None:
        return FileStore(self.reads) if self.parameters == "nvme" else super().store()

    # ---- at the start
    @torch.no_grad()
    def keep(
        self, i: int, pieces: Sequence[BucketPiece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        """Write bucket i's values for the optimizer to a file, and return placeholders."""
        dtype = torch.float32 if self.master else shard.dtype
        if not pieces:
            return []
        outline = self._outline(dtype)
        parts = [nn.Parameter(outline.expand(piece.numel)) for piece in pieces]
        in_files = isinstance(store, FileStore)
        half = shard.dtype if self.master and in_files else None
        layout = self._layout(pieces, dtype, half)
        try:
            own = list(zip(pieces, parts, strict=True))
            kept = FileBucket(layout, self.folder.make(i, layout.nbytes), own, outline)
            self._write(kept, shard)
            self.kept[i] = kept
            if in_files:
                first = layout.kept_bytes if half else 0
                nbytes = layout.half_bytes if half else layout.values_bytes
                store.place = FilePlace(kept.file, first, nbytes, layout.count)
            else:
                kept.shard = shard[: layout.count]
        except (OSError, OutOfMemory) as error:
            self._error = self._error or error
        return parts

    def _layout(
        self, pieces: Sequence[BucketPiece], dtype: torch.dtype, half: torch.dtype | None
    ) -> FileLayout:
        """Return the layout of a bucket's file, with room for the states of trained elements."""
        states: dict[str, torch.dtype] = {}
        spans: dict[str, list[tuple[int, int]]] = {}
        for piece in pieces:
            own = self._states_of(piece, dtype)
            states |= own
            for name in own:
                spans.setdefault(name, []).append((piece.at, piece.at + piece.numel))
        return FileLayout(real(pieces), dtype, states, half, spans)

    def ready(self) -> None:
        """Confirm that all buckets have their files on all ranks; otherwise raise on all."""
        try:
            together(self._error, self.groups, ". No engine was made, and its files were removed")
        except OSError:
            self.close()
            raise

    def _write(self, kept: FileBucket, shard: Tensor) -> None:
        """Write a shard's values to the file, without changing its states."""
        layout = kept.layout
        memory = buffer(layout.values_bytes + layout.half_bytes, host_of(self.device))
        small = FileLayout(layout.count, layout.dtype, {}, layout.half)
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

    def _states_of(self, piece: BucketPiece, dtype: torch.dtype) -> dict[str, torch.dtype]:
        group = self.group_of.get(piece.slot.parameter)
        if group is None or not piece.slot.parameter.requires_grad:  # frozen, so never updated
            return {}
        if (id(group), dtype) not in self._states:
            with tier("host"):
                self._states[id(group), dtype] = states_of(self._optimizer, group, dtype)
        return self._states[id(group), dtype]

    def _outline(self, dtype: torch.dtype) -> Tensor:
        """Return one element, to be expanded to a part's shape while its values are in a file."""
        if dtype not in self._outlines:
            self._outlines[dtype] = on_host(1, dtype, host_of(self.device)).zero_()
        return self._outlines[dtype]

    @torch.no_grad()
    def take_in(self, optimizer: Optimizer) -> None:
        """Write to the files any states that the optimizer has before its first step."""
        with self.together():
            for i, kept in self.kept.items():
                if any(part in optimizer.state for _, part in kept.own):
                    with self.at_hand(i, kept.own, optimizer, write=True):
                        """The states are saved at the end."""

    # ---- a step
    def follow(self, own_parts: Sequence[Own], shards: Sequence[Tensor]) -> None:
        """Note changed shards, which a bucket copies when it is next in memory anyway."""
        self._followed = shards
        for i, changed in enumerate(self._untouched.changed(shards)):
            if changed and i in self.kept:
                self.kept[i].shown = shards[i][: self.kept[i].layout.count]

    def step(self, optimizer: Optimizer) -> None:
        """Update bucket by bucket; each bucket is lent to the optimizer while it is in memory."""
        self.reads.drop()
        todo = [i for i, kept in self.kept.items() if any(p.grad is not None for _, p in kept.own)]
        if not todo:
            optimizer.step()  # it updates nothing, but its calls are counted correctly
            return

        def update(i: int, memory: Tensor) -> None:
            kept, first, last = self.kept[i], i == todo[0], i == todo[-1]
            with kept.lent(memory, optimizer.state, write=True), updating():
                lend(optimizer, {part for _, part in kept.own}, first=first, last=last)
            self._done += 1

        through_memory(self.io, self.kept, todo, self._memory(), update)

    def _memory(self) -> list[Tensor]:
        """Return the sets of memory for buckets."""
        if not self._sets:
            count = min(SETS, len(self.kept))
            self._sets = [buffer(self.set_bytes, self.device) for _ in range(count)]
        return self._sets

    # ---- changes from outside
    def rewritten(self, i: int, own_parts: Own, shard: Tensor) -> None:
        """Copy the differences of a changed shard to the file."""
        if i not in self.kept:
            return
        kept = self.kept[i]
        memory = buffer(kept.layout.values_bytes, host_of(self.device))
        self.io.read(kept.file, 0, memory).wait()
        values = kept.layout.values(memory)
        take_over([(values, shard[: kept.layout.count])])
        self._write(kept, values)

    def states(self, i: int, own_parts: Own, optimizer: Optimizer) -> list[Mapping[str, object]]:
        return self.kept[i].outlines() if i in self.kept else []

    @contextmanager
    def at_hand(
        self, i: int, own_parts: Own, optimizer: Optimizer, *, write: bool = False
    ) -> Iterator[None]:
        kept = self.kept.get(i)
        if kept is None:  # only padding
            yield
            return
        memory = self._memory()[0]
        self.io.read(kept.file, 0, memory[: kept.layout.kept_bytes]).wait()
        with kept.lent(memory, optimizer.state, write=write):
            yield
        if write:
            self.reads.drop()  # data read ahead is outdated
            self.io.write(kept.file, 0, memory[: kept.layout.nbytes]).wait()
            self.io.sync([kept.file]).wait()

    def close(self) -> None:
        """Stop the threads and remove the files."""
        super().close()
        self.reads.closed = True
        self.io.close()
        self.folder.close()
        self._sets = []
        for kept in self.kept.values():
            kept.shard = kept.shown = None
