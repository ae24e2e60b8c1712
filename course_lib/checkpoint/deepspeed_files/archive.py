"""A file that torch.save wrote: its object without tensor data, and the data by byte range.

The tensors are created on torch's meta device and take no memory. Each tensor records the position
of its elements in the file. A zip record's CRC-32 is checked before it is used. Lesson 14.
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

AT_ONCE = 1 << 20  # bytes read in one call, and held in addition to the tensor
LOCAL = struct.Struct("<4s22xHH")  # local header: signature, lengths of name and extra
# Errors from reading the directory of a damaged zip.
NO_ZIP = (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error)
COPY = "copy it again from its source, or use an earlier step"


class Flat(NamedTuple):
    """A tensor's elements in the file: the position of the first one, their number and dtype."""

    start: int  # byte in the file
    count: int
    dtype: torch.dtype
    record: int  # start of the zip record that contains them


class Archive:
    """A torch.save file: `content` is the saved object, `flat` finds a tensor's bytes in it, and
    `read` reads them. No code that the file names is executed."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._held: set[int] = set()  # records with a correct checksum
        self._file, self._as_opened = -1, None
        self.open()
        try:
            self._records = self._directory()
            # torch.save can omit the checksums; then all of them are 0.
            self.has_sums = any(record.CRC for record in self._records.values())
            self._check_words()
            self.content = self._unpickled()
        except BaseException:
            self.close()
            raise

    def flat(self, x: object, what: str) -> Flat:
        """Locate the elements of one of the content's tensors."""
        if not isinstance(x, Tensor) or x.layout != torch.strided:
            kind = str(x.layout) if isinstance(x, Tensor) else type(x).__name__
            raise CheckpointError(f"{self.path}: {what} is {kind} instead of a dense tensor")
        storage = x.untyped_storage()
        first = getattr(storage, "_checkpoint_offset", None)
        record, size = self._records.get(first), x.element_size()
        if x.numel() == 0:
            return Flat(0, 0, x.dtype, 0)
        if first is None:
            raise CheckpointError(
                f"{self.path}: torch {torch.__version__} does not report the position of a tensor "
                "in a file, but torch 2.13, the tested release, does"
            )
        start = x.storage_offset() * size
        fits = record is not None and start + x.numel() * size <= record.file_size
        if not fits or record.file_size != storage.nbytes() or not x.is_contiguous():
            raise CheckpointError(
                f"{self.path} is damaged or was rewritten, because {what} is not stored as one "
                f"piece in a record of its size; {COPY}"
            )
        return Flat(first + start, x.numel(), x.dtype, first)

    def read(self, flat: Flat, start: int, stop: int, into: memoryview) -> None:
        """Read elements `start` to `stop` of a tensor as bytes into a buffer."""
        self.open()
        if flat.count:
            self._check_sum(flat.record)
        size = flat.dtype.itemsize
        self._fill(flat.start + start * size, into[: (stop - start) * size])

    def number(self, x: object, what: str) -> float:
        """Read a tensor of one element, or return a plain number."""
        if isinstance(x, Tensor) and x.numel() == 1:
            flat, found = self.flat(x, what), bytearray(x.element_size())
            self.read(flat, 0, 1, memoryview(found))
            return torch.frombuffer(found, dtype=x.dtype).item()
        if isinstance(x, (int, float)):
            return x
        raise CheckpointError(f"{self.path}: {what} is not a number")

    def open(self) -> None:
        """Open the file, or reopen it if it was closed to save handles; refuse a replaced file."""
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
            raise CheckpointError(f"{self.path} was replaced while it was being read; start again")
        self._as_opened = same

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _directory(self) -> dict[int, zipfile.ZipInfo]:
        """List the zip's records by the byte position of each record's content."""
        size = os.fstat(self._file).st_size
        try:
            with zipfile.ZipFile(self.path) as archive:
                listed = archive.infolist()
        except NO_ZIP as error:
            raise CheckpointError(
                f"{self.path} ({size} bytes) is not a zip file of torch.save ({error}). It may be "
                f"truncated or damaged; then {COPY}. If DeepSpeed's fast writer made it, save "
                "again without checkpoint.writer in the DeepSpeed config"
            ) from error
        records = {}
        for record in listed:
            first = record.header_offset if 0 <= record.header_offset < size else size
            head = os.pread(self._file, LOCAL.size, first)
            sign, name, extra = LOCAL.unpack(head.ljust(LOCAL.size, b"\0"))
            begin = first + LOCAL.size + name + extra
            if sign != b"PK\x03\x04" or record.compress_type != zipfile.ZIP_STORED:
                raise CheckpointError(
                    f"{self.path}: {record.filename} is damaged or was packed by a different "
                    f"program. Remedy: {COPY}"
                )
            records[begin] = record
        return records

    def _check_words(self) -> None:
        """Check the bytes that torch.load will read, and the file's byte order."""
        for begin, record in self._records.items():
            if "/data/" not in record.filename:
                self._check_sum(begin)
            if record.filename.endswith("/byteorder"):
                order = self._some(begin, record.file_size).decode("latin1")
                if order != sys.byteorder:
                    raise CheckpointError(
                        f"{self.path} was written in byte order {order!r}, but this machine's is "
                        f"{sys.byteorder!r}; convert it on the machine that wrote it"
                    )

    def _unpickled(self) -> object:
        try:
            with allowed():
                return torch.load(self.path, map_location="meta", weights_only=True)
        except Exception as error:  # a damaged pickle can fail in many ways
            strange = self._strange(str(error))
            if strange:
                plain = ", ".join(name.rpartition(".")[2] for name in STAND_INS)
                raise CheckpointError(
                    f"{self.path} names {strange}, but no code that a file names is run: of "
                    f"DeepSpeed's own names only {plain} may appear. Do not load it in a different "
                    "way unless you know who wrote it. If you did, save again without that object "
                    "in client_state"
                ) from None
            first = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise CheckpointError(f"{self.path} cannot be read ({first[:200]}); {COPY}") from None

    def _strange(self, text: str) -> str:
        """Find names in the pickle that torch does not allow and that have no substitute."""
        try:
            with allowed():
                names = torch.serialization.get_unsafe_globals_in_checkpoint(str(self.path))
        except Exception:  # the file may not contain a pickle
            names = []
        return ", ".join(sorted(names) or re.findall(r"GLOBAL ([\w.]+)", text)[:1])

    def _check_sum(self, begin: int) -> None:
        """Check a record's CRC-32 at its first use; a file without checksums is accepted."""
        if begin in self._held or not self.has_sums:
            return
        record, sum_ = self._records[begin], 0
        for at in range(begin, begin + record.file_size, AT_ONCE):
            sum_ = zlib.crc32(self._some(at, begin + record.file_size - at), sum_)
        if sum_ != record.CRC:
            raise CheckpointError(
                f"{self.path} has changed, because {record.filename} has the CRC-32 {sum_:08x} but "
                f"was written with {record.CRC:08x}; {COPY}"
            )
        self._held.add(begin)

    def _fill(self, at: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            piece = self._some(at + done, len(view) - done)
            view[done : done + len(piece)] = piece
            done += len(piece)

    def _some(self, at: int, most: int) -> bytes:
        """Read `most` bytes, but at most AT_ONCE, and refuse a file that ends earlier."""
        piece = os.pread(self._file, min(most, AT_ONCE), at)
        if len(piece) < min(most, AT_ONCE):
            raise CheckpointError(f"{self.path} ended at byte {at + len(piece)}; {COPY}")
        return piece
