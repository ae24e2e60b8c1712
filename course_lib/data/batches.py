"""Who gets which rows: tp ranks of one model the same, dp ranks different ones, none twice.

All ranks know the one order of all rows, so each takes its own without a word, knows how many
tokens count in the whole batch, and a run goes on where it stopped, on any number of dp ranks.
Lesson 08 derives why.
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

IGNORED = -100  # the target of what does not count
PADDING = 0  # an id behind a short document; nothing is learnt from it


class Batch(NamedTuple):
    """This rank's rows of one step. A loss is a sum over all dp ranks' tokens, over `total`."""

    ids: Tensor  # (b, s)
    targets: Tensor  # (b, s), the ids that come next; −100 where none counts
    count: int  # targets that count, in these rows
    total: int  # and in the rows of all dp ranks together
    rows: tuple[int, ...]  # the numbers of these rows in the data


class Batches:
    """An endless iterator of batches; every epoch has each row once, in an order of its own.

    `rows` is the number of rows of a step on all dp ranks together, `length` that of a row.
    `dp` is the mesh, or (index, count) of this rank among the dp ranks. The data are tokens in one
    piece, or documents as a list of tensors, or a Corpus. With `pack`, rows are cut from all tokens
    one after another; without, a row is a document or a cut of one, filled up with what does not
    count. A batch may span the end of an epoch, so no row is left out.
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
                raise ValueError(f"{name}={value!r} has to be a whole number, 1 or more")
        self.index, self.ranks = _place_on(dp)
        if rows < self.ranks:
            raise ValueError(
                f"rows={rows} of a step cannot be shared by {self.ranks} dp ranks: "
                f"{self.ranks - rows} of them would have none. Take rows={self.ranks} or more"
            )
        ends = torch.cat((starts[1:], starts.new_tensor([self.tokens.numel()])))
        if pack:
            starts, ends = starts[:1], ends[-1:]
        self._first, self._valid = _rows_of(starts, ends, length, short=not pack)
        if self.known < rows:
            raise ValueError(
                f"{self.tokens.numel()} tokens in {starts.numel()} pieces make {self.known} rows "
                f"of length={length}, and a step takes rows={rows}: take more text, shorter rows, "
                "or fewer of them"
            )
        self._data = _fingerprint(self.tokens, ends)
        self._epoch, self._position = 0, 0
        self._order = self._shuffled(0)

    @property
    def known(self) -> int:
        """How many rows there are in an epoch."""
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
        # A row of n targets has n + 1 tokens; what lies behind them is another document's.
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
        """Where the next step begins, as plain numbers for a JSON file."""
        return {**self._settings(), "epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping) -> None:
        """Go on where `state` was taken, on any number of dp ranks, or refuse."""
        own = self._settings()
        lost = sorted({*own, "epoch", "position"} - set(state))
        if lost:
            raise ValueError(f"this is no state of Batches: it has no {', '.join(lost)}")
        for key, value in own.items():
            if state[key] != value:
                what = "of other data" if key == "data" else f"by {key}={state[key]!r}"
                raise ValueError(
                    f"the state was taken {what}, and here {key}={value!r}: its next rows cannot "
                    "be found. Go on with the same, or begin at the beginning"
                )
        epoch, position = state["epoch"], state["position"]
        whole = all(isinstance(x, int) and not isinstance(x, bool) for x in (epoch, position))
        if not whole or epoch < 0 or not 0 <= position < self.known:
            raise ValueError(
                f"the state says epoch={epoch!r}, position={position!r}; an epoch is 0 or more, "
                f"and positions are 0 to {self.known - 1}"
            )
        self._epoch, self._position = epoch, position
        self._order = self._shuffled(epoch)

    def _settings(self) -> dict:
        keys = ("seed", "rows", "length", "pack")
        return {**{key: getattr(self, key) for key in keys}, "data": self._data}

    def _take(self, count: int) -> Tensor:
        """The next rows of the one order; behind an epoch's last comes the next epoch's first."""
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
    """All tokens in one piece, on the CPU, and where each document begins."""
    if isinstance(data, Corpus):
        return data.tokens, data.starts
    pieces = [data] if isinstance(data, Tensor) else list(data)
    for piece in pieces:
        if not isinstance(piece, Tensor) or piece.dim() != 1 or piece.is_floating_point():
            found = tuple(piece.shape) if isinstance(piece, Tensor) else type(piece).__name__
            raise ValueError(f"data are whole numbers in tensors of one dim, and here is {found}")
    if not pieces:
        raise ValueError("there are no documents to take rows from")
    lengths = torch.tensor([piece.numel() for piece in pieces], device="cpu")
    tokens = torch.cat([piece.detach().cpu() for piece in pieces])
    if tokens.numel() and int(tokens.min()) < 0:
        raise ValueError(f"the data hold the id {int(tokens.min())}: ids are 0 or more")
    return tokens, lengths.cumsum(0) - lengths


def _place_on(dp: tuple[int, int] | DeviceMesh) -> tuple[int, int]:
    if isinstance(dp, DeviceMesh):
        group = axis(dp, "dp")
        return group.rank(), group.size()
    index, count = dp
    if not 0 <= index < count:
        raise ValueError(f"dp={tuple(dp)} is (index, count): the index is 0 to {count - 1}")
    return index, count


def _rows_of(starts: Tensor, ends: Tensor, length: int, *, short: bool) -> tuple[Tensor, Tensor]:
    """Each row's first token, and how many of its targets count: the last token has none."""
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
