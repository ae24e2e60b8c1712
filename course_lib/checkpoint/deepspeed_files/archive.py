"""One file that torch.save wrote: its object without the numbers, and those by exact byte ranges.

The tensors come to torch's meta device and take no memory; each says where in the file its elements
lie. A record of the zip is held against its CRC-32 before the first byte of it is used. Lesson 14.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checkpoint.deepspeed_files.stand_ins import STAND_INS, allowed
from course_lib.pretrained.header import CheckpointError

AT_ONCE = 1 << 20  # bytes asked for in one call, and held beside the tensor for as long
LOCAL = struct.Struct("<4s22xHH")  # of a record's own header: signature, lengths of name and extra
# What reading the directory of a damaged zip raises.
NO_ZIP = (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error)
COPY = "copy it again from where it was written, or take an earlier step"


class Flat(NamedTuple):
    """A tensor's elements in their order: where the first one is in the file, and of what kind."""

    start: int  # byte in the file
    count: int
    dtype: torch.dtype
    record: int  # where the zip's record begins that they are in


class Archive:
    """A file of torch.save: `content` is its object, `flat` finds a tensor's bytes in the file, and
    `read` reads them. Nothing that the file names is executed."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._held: set[int] = set()  # the records whose sums were right
        self._file, self._as_opened = -1, None
        self.open()
        try:
            self._records = self._directory()
            # torch.save can be told to leave the sums out; then all of them are 0.
            self.has_sums = any(record.CRC for record in self._records.values())
            self._check_words()
            self.content = self._unpickled()
        except BaseException:
            self.close()
            raise

    def flat(self, x: object, what: str) -> Flat:
        """Where the elements of one of the content's tensors are."""
        if not isinstance(x, Tensor) or x.layout != torch.strided:
            kind = str(x.layout) if isinstance(x, Tensor) else type(x).__name__
            raise CheckpointError(f"{self.path}: {what} is {kind}, where a dense tensor belongs")
        storage = x.untyped_storage()
        first = getattr(storage, "_checkpoint_offset", None)
        record, size = self._records.get(first), x.element_size()
        if x.numel() == 0:
            return Flat(0, 0, x.dtype, 0)
        if first is None:
            raise CheckpointError(
                f"{self.path}: torch {torch.__version__} does not tell where in a file a tensor "
                "lies; torch 2.13 does, with which this was tested"
            )
        start = x.storage_offset() * size
        fits = record is not None and start + x.numel() * size <= record.file_size
        if not fits or record.file_size != storage.nbytes() or not x.is_contiguous():
            raise CheckpointError(
                f"{self.path}: {what} does not lie in one piece in a record of the file that has "
                f"its size; the file is damaged or was rewritten: {COPY}"
            )
        return Flat(first + start, x.numel(), x.dtype, first)

    def read(self, flat: Flat, start: int, stop: int, into: memoryview) -> None:
        """Elements `start` to `stop` of it, as bytes."""
        self.open()
        if flat.count:
            self._check_sum(flat.record)
        size = flat.dtype.itemsize
        self._fill(flat.start + start * size, into[: (stop - start) * size])

    def number(self, x: object, what: str) -> float:
        """A tensor of one element, or a plain number."""
        if isinstance(x, Tensor) and x.numel() == 1:
            flat, found = self.flat(x, what), bytearray(x.element_size())
            self.read(flat, 0, 1, memoryview(found))
            return torch.frombuffer(found, dtype=x.dtype).item()
        if isinstance(x, (int, float)):
            return x
        raise CheckpointError(f"{self.path}: {what} is no number")

    def open(self) -> None:
        """Open the file, again where it was closed to have fewer open; it has to be the same."""
        if self._file >= 0:
            return
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be opened: {error.strerror}") from error
        found = os.fstat(self._file)
        same = found.st_ino, found.st_size, found.st_mtime_ns
        if self._as_opened not in (None, same):
            self.close()
            raise CheckpointError(f"{self.path} was replaced while it was read; begin once more")
        self._as_opened = same

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _directory(self) -> dict[int, zipfile.ZipInfo]:
        """The records of the zip, by the byte at which each one's content begins."""
        size = os.fstat(self._file).st_size
        try:
            with zipfile.ZipFile(self.path) as archive:
                listed = archive.infolist()
        except NO_ZIP as error:
            raise CheckpointError(
                f"{self.path}, {size} bytes, is no zip as torch.save writes it ({error}): it was "
                f"cut off or damaged ({COPY}), or DeepSpeed's fast writer made it (save once more "
                "without checkpoint.writer in the DeepSpeed config)"
            ) from error
        records = {}
        for record in listed:
            first = record.header_offset if 0 <= record.header_offset < size else size
            head = os.pread(self._file, LOCAL.size, first)
            sign, name, extra = LOCAL.unpack(head.ljust(LOCAL.size, b"\0"))
            begin = first + LOCAL.size + name + extra
            if sign != b"PK\x03\x04" or record.compress_type != zipfile.ZIP_STORED:
                raise CheckpointError(
                    f"{self.path}: {record.filename} is damaged or was packed by another program; "
                    f"{COPY}"
                )
            records[begin] = record
        return records

    def _check_words(self) -> None:
        """What torch.load will read is what was written, and by a machine of this byte order."""
        for begin, record in self._records.items():
            if "/data/" not in record.filename:
                self._check_sum(begin)
            if record.filename.endswith("/byteorder"):
                order = self._some(begin, record.file_size).decode("latin1")
                if order != sys.byteorder:
                    raise CheckpointError(
                        f"{self.path} was written in byte order {order!r}, and this machine's is "
                        f"{sys.byteorder!r}; convert it where it was written"
                    )

    def _unpickled(self) -> object:
        try:
            with allowed():
                return torch.load(self.path, map_location="meta", weights_only=True)
        except Exception as error:  # a damaged pickle fails in as many ways as there are opcodes
            strange = self._strange(str(error))
            if strange:
                plain = ", ".join(name.rpartition(".")[2] for name in STAND_INS)
                raise CheckpointError(
                    f"{self.path} names {strange}, and nothing that a file names is run: of "
                    f"DeepSpeed's own names it may have {plain}. "
                    "Do not load it otherwise unless you know who wrote it; if that was you, save "
                    "once more without that object in client_state"
                ) from None
            first = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise CheckpointError(f"{self.path} cannot be read: {first[:200]}; {COPY}") from None

    def _strange(self, text: str) -> str:
        """The names in the pickle that are neither torch's plain ones nor stood in for."""
        try:
            with allowed():
                names = torch.serialization.get_unsafe_globals_in_checkpoint(str(self.path))
        except Exception:  # it takes the pickle apart, which may be no pickle
            names = []
        return ", ".join(sorted(names) or re.findall(r"GLOBAL ([\w.]+)", text)[:1])

    def _check_sum(self, begin: int) -> None:
        """Hold a record against its CRC-32, once; a file without sums is taken as it is."""
        if begin in self._held or not self.has_sums:
            return
        record, sum_ = self._records[begin], 0
        for at in range(begin, begin + record.file_size, AT_ONCE):
            sum_ = zlib.crc32(self._some(at, begin + record.file_size - at), sum_)
        if sum_ != record.CRC:
            raise CheckpointError(
                f"{self.path}: {record.filename} has the CRC-32 {sum_:08x} and was written with "
                f"{record.CRC:08x}: its bytes have changed; {COPY}"
            )
        self._held.add(begin)

    def _fill(self, at: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            piece = self._some(at + done, len(view) - done)
            view[done : done + len(piece)] = piece
            done += len(piece)

    def _some(self, at: int, most: int) -> bytes:
        """All of `most` bytes, or AT_ONCE of them."""
        piece = os.pread(self._file, min(most, AT_ONCE), at)
        if len(piece) < min(most, AT_ONCE):
            raise CheckpointError(f"{self.path} ended at byte {at + len(piece)}; {COPY}")
        return piece
