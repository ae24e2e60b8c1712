"""A pipeline of buckets from their files through memory and back: read, update, write.

Three sets of memory are enough for any number of buckets, and the disk is busy while the rank
computes. Lesson 12 draws it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from course_lib.zero.offload.file_bucket import FileBucket
from course_lib.zero.offload.files import Files, Pending

SETS = 3


def through_memory(
    io: Files,
    kept: Mapping[int, FileBucket],
    todo: Sequence[int],
    sets: Sequence[Tensor],
    work: Callable[[int, Tensor], None],
) -> None:
    """Call `work(i, memory)` for every bucket in `todo`, and sync the results to the files.

    An error is raised only when no transfer is in progress any more, so that the memory is free.
    """
    free, ahead = deque(sets), deque(todo)
    coming: deque[tuple[int, Tensor, Pending]] = deque()
    leaving: deque[tuple[Tensor, Pending]] = deque()

    def read_next() -> None:
        if not ahead:
            return
        if not free:
            memory, pending = leaving.popleft()
            pending.wait()
            free.append(memory)
        i, memory = ahead.popleft(), free.popleft()
        part = memory[: kept[i].layout.kept_bytes]
        coming.append((i, memory, io.read(kept[i].file, 0, part)))

    try:
        read_next()
        while coming:
            read_next()
            i, memory, reading = coming.popleft()
            reading.wait()
            work(i, memory)
            part = memory[: kept[i].layout.nbytes]
            leaving.append((memory, io.write(kept[i].file, 0, part)))
        while leaving:
            leaving.popleft()[1].wait()
        io.sync([kept[i].file for i in todo]).wait()
    finally:
        for *_, pending in [*coming, *leaving]:
            with contextlib.suppress(OSError):  # the first error is being raised
                pending.wait()
