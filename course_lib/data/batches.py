"""Rows for each rank: the same for the tp ranks of a replica, different for each dp rank.

All ranks know the order of all rows, so each takes its own rows without communication and knows how
many targets count in the global batch. A run can continue where it stopped, on any number of dp
ranks. Lesson 08 explains why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data.corpus import Corpus, bytes_of
from course_lib.layout import heads as evenly
from course_lib.ranks import axis

IGNORED = -100  # the target of a position that does not count
PADDING = 0  # an id after the end of a short document; it is never a target


class Batch(NamedTuple):
    """This rank's rows of a step. The loss is a sum over all dp ranks, divided by `total`."""

    ids: Tensor  # (b, s)
    targets: Tensor  # (b, s), the next ids; −100 at positions that do not count
    count: int  # targets that count in these rows
    total: int  # targets that count in the rows of all dp ranks together
    rows: tuple[int, ...]  # the numbers of these rows in the data


class Batches:
    """An endless iterator of batches that visits each row once per epoch, in a new order each time.

    `rows` is the number of rows per step on all dp ranks together, and `length` is the length of a
    row. `dp` is the mesh, or (index, count) of this rank among the dp ranks. `data` is one tensor
    of tokens, a list of documents as tensors, or a Corpus. With `pack`, rows are taken from all
    tokens in sequence. Without it, a row is a document or a part of one, padded with positions that
    do not count. A batch may cross the end of an epoch, so no row is left out.
    """

    def __init__(
        self,
        data: Tensor | Sequence[Tensor] | Corpus,
        *,
        rows: int,
        length: int,
        dp: tuple[int, int] | DeviceMesh = (0, 1),
        seed: int = 0,
        pack: bool = True,
        device: torch.device | str | None = None,
    ):
        self.tokens, starts = _joined(data)
        self.rows, self.length, self.seed, self.pack, self.device = rows, length, seed, pack, device
        for name, value in (("rows", rows), ("length", length)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of 1 or more")
        self.index, self.ranks = _place_on(dp)
        if rows < self.ranks:
            raise ValueError(
                f"rows={rows} per step cannot be shared by {self.ranks} dp ranks, because "
                f"{self.ranks - rows} of them would have none. Take rows={self.ranks} or more"
            )
        ends = torch.cat((starts[1:], starts.new_tensor([self.tokens.numel()])))
        if pack:
            starts, ends = starts[:1], ends[-1:]
        self._first, self._valid = _rows_of(starts, ends, length, short=not pack)
        if self.known < rows:
            raise ValueError(
                f"{self.tokens.numel()} tokens in {starts.numel()} pieces make {self.known} rows "
                f"of length={length}, but a step takes rows={rows}: take more text, shorter rows, "
                "or fewer of them"
            )
        self._data = _fingerprint(self.tokens, ends)
        self._epoch, self._position = 0, 0
        self._order = self._shuffled(0)

    @property
    def known(self) -> int:
        """The number of rows in an epoch."""
        return self._first.numel()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        every = self._take(self.rows)  # (rows,), the same on every rank
        shares = evenly(self.rows, self.ranks)
        start = sum(shares[: self.index])
        own = every[start : start + shares[self.index]]  # (b,)
        along = torch.arange(self.length + 1, device="cpu")  # (s + 1,)
        places = self._first[own, None] + along  # (b, s + 1)
        counts = self._valid[own, None] > along[:-1]  # (b, s)
        ids = self.tokens[places.clamp(max=self.tokens.numel() - 1)].long()
        # A row of n targets has n + 1 tokens; the tokens after them belong to another document.
        real = self._valid[own, None] >= along[:-1]  # (b, s)
        targets = torch.where(counts, ids[:, 1:], IGNORED)
        inputs = torch.where(real, ids[:, :-1], PADDING)
        return Batch(
            inputs.to(self.device),
            targets.to(self.device),
            int(self._valid[own].sum()),
            int(self._valid[every].sum()),
            tuple(own.tolist()),
        )

    def state(self) -> dict:
        """Return the position of the next step and the settings, as plain data for a JSON file."""
        return {**self._settings(), "epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping) -> None:
        """Continue from `state`, on any number of dp ranks, or raise if that is impossible."""
        own = self._settings()
        lost = sorted({*own, "epoch", "position"} - set(state))
        if lost:
            raise ValueError(f"this is not a state of Batches: it lacks {', '.join(lost)}")
        for key, value in own.items():
            if state[key] != value:
                what = "from different data" if key == "data" else f"with {key}={state[key]!r}"
                raise ValueError(
                    f"the state was taken {what}, but here {key}={value!r}, so its next rows "
                    "cannot be found. Continue with the same value, or start from the beginning"
                )
        epoch, position = state["epoch"], state["position"]
        whole = all(isinstance(x, int) and not isinstance(x, bool) for x in (epoch, position))
        if not whole or epoch < 0 or not 0 <= position < self.known:
            raise ValueError(
                f"the state has epoch={epoch!r}, position={position!r}, but an epoch is 0 or more, "
                f"and positions are 0 to {self.known - 1}"
            )
        self._epoch, self._position = epoch, position
        self._order = self._shuffled(epoch)

    def _settings(self) -> dict:
        keys = ("seed", "rows", "length", "pack")
        return {**{key: getattr(self, key) for key in keys}, "data": self._data}

    def _take(self, count: int) -> Tensor:
        """Take the next `count` rows in order, and begin a new epoch after the last row."""
        taken = self._order[self._position : self._position + count]
        self._position += taken.numel()
        if self._position == self.known:
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._shuffled(self._epoch)
            if taken.numel() < count:
                taken = torch.cat((taken, self._take(count - taken.numel())))
        return taken

    def _shuffled(self, epoch: int) -> Tensor:
        mixed = hashlib.sha256(f"{self.seed} {epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(mixed[:7], "big"))
        return torch.randperm(self.known, generator=generator, device="cpu")


def _joined(data: Tensor | Sequence[Tensor] | Corpus) -> tuple[Tensor, Tensor]:
    """Return all tokens in one tensor on the CPU, and the position where each document begins."""
    if isinstance(data, Corpus):
        return data.tokens, data.starts
    pieces = [data] if isinstance(data, Tensor) else list(data)
    for piece in pieces:
        if not isinstance(piece, Tensor) or piece.dim() != 1 or piece.is_floating_point():
            found = tuple(piece.shape) if isinstance(piece, Tensor) else type(piece).__name__
            raise ValueError(f"data must be integers in tensors of one dim, but got {found}")
    if not pieces:
        raise ValueError("there are no documents to take rows from")
    lengths = torch.tensor([piece.numel() for piece in pieces], device="cpu")
    tokens = torch.cat([piece.detach().cpu() for piece in pieces])
    if tokens.numel() and int(tokens.min()) < 0:
        raise ValueError(f"the data contain the id {int(tokens.min())}, but ids are 0 or more")
    return tokens, lengths.cumsum(0) - lengths


def _place_on(dp: tuple[int, int] | DeviceMesh) -> tuple[int, int]:
    if isinstance(dp, DeviceMesh):
        group = axis(dp, "dp")
        return group.rank(), group.size()
    index, count = dp
    if not 0 <= index < count:
        raise ValueError(f"dp={tuple(dp)} is (index, count); the index is 0 to {count - 1}")
    return index, count


def _rows_of(starts: Tensor, ends: Tensor, length: int, *, short: bool) -> tuple[Tensor, Tensor]:
    """Return each row's first position and number of targets; a document's last token has none."""
    first, valid = [], []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        for at in range(start, end - 1, length):
            targets = min(length, end - 1 - at)
            if short or targets == length:
                first.append(at)
                valid.append(targets)
    return tuple(torch.tensor(x, dtype=torch.int64, device="cpu") for x in (first, valid))


def _fingerprint(tokens: Tensor, ends: Tensor) -> str:
    digest = hashlib.sha256(bytes_of(tokens.long()))
    digest.update(bytes_of(ends))
    return digest.hexdigest()[:16]
