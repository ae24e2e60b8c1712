"""Inputs that differ on every rank, the verbs computed in one process, and how equal is equal."""

from __future__ import annotations

import torch


def made(tag, rank, shape, dtype):
    """Rank's input: random, different on each rank, the same wherever it is made."""
    generator = torch.Generator().manual_seed(1000 * tag + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype == torch.int64:
        return torch.randint(-9, 10, shape, generator=generator)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 0.5).to(dtype)


def reduced(xs, op):
    """The reduction of all ranks' x, and how far a sum in another order may be from it."""
    dtype = xs[0].dtype
    parts = torch.stack(xs)
    if dtype == torch.bool:
        return (parts.any(0) if op in ("sum", "max") else parts.all(0)), torch.zeros(())
    if op in ("max", "min"):
        return getattr(parts, f"a{op}")(0), torch.zeros(())
    exact = parts.double() if dtype.is_floating_point else parts
    size = exact.abs()
    whole, size = (exact.sum(0), size.sum(0)) if op == "sum" else (exact.prod(0), size.prod(0))
    if not dtype.is_floating_point:
        return whole, torch.zeros(())
    return whole, len(xs) * torch.finfo(dtype).eps * size


def same(label, got, want, slack=None):
    got, want = got.cpu(), want.cpu()
    assert got.shape == want.shape, f"{label}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if slack is None:
        assert got.dtype == want.dtype, f"{label}: {got.dtype}, not {want.dtype}"
        assert torch.equal(got, want), f"{label}: got {got}, not {want}"
    else:
        off = (got.to(want.dtype) - want).abs() if want.dtype != torch.bool else got ^ want
        assert bool((off <= slack.cpu()).all()), (
            f"{label}: off by {off.max()}; got {got}, not {want}"
        )


def cuts(n):
    """(total, sizes) of uneven, empty and even pieces for n ranks."""
    uneven = [2, 0, 5, 1][:n]
    return [
        (3 * n, None),
        (7, None),  # torch.chunk gives 2, 2, 2, 1 to four ranks and 3, 3, 1 to three
        (1, None),  # one rank has all, the others nothing
        (0, None),
        (sum(uneven), uneven),
        (4, [0] * (n - 1) + [4]),
    ]


def chunk_lengths(total, n):
    pieces = torch.empty(total).chunk(n) if total else ()
    lengths = [len(piece) for piece in pieces]
    return lengths + [0] * (n - len(lengths))


def shape_with(dim, length):
    """A shape of unequal lengths with `length` at `dim`."""
    shape = [2, 3, 4]
    shape[dim] = length
    return tuple(shape)
