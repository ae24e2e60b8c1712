"""Norms of what is cut, copied, tied or padded: those of the whole tensors, and so is clipping."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib import ranks
from course_lib.ledger import ledger
from course_lib.norms import Piece, _on_one_device, clip, norm
from tests.course_lib.tensor_parallel.parts import close, made, own, said

ORDERS = (0.5, 1, 2, 2.5, math.inf)
MESHES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2)]  # dp, tp


def logical(dtype, device):
    """Whole tensors and how each is cut, by name; the largest numbers lie where they are easily
    lost: in a cut one's last part, and in what is counted once."""
    sizes = {"copied": (7, 3), "cut": (9, 4), "short": (3, 5), "wide": (4, 13), "over dp": (6, 2)}
    whole = {name: made(("norms", name), *size).to(device, dtype) for name, size in sizes.items()}
    whole["over both"] = made("norms both", 8, 8).to(device, dtype)
    whole["cut"][-1, -1] = -5.0
    return whole


def pieces_of(whole, tp, dp):
    """This rank's pieces, one of them named twice and one with a tail that does not count."""
    cut = own(whole["cut"], tp, 0)
    real = cut.numel()
    tail = torch.full((2, cut.shape[1]), 1e4, dtype=cut.dtype, device=cut.device)
    return [
        tied := Piece(whole["copied"].clone()),
        Piece(torch.cat((cut, tail)), (tp,), real),
        Piece(own(whole["short"], tp, 0).clone(), (tp,)),
        Piece(own(whole["wide"], tp, 1).clone(), (tp,)),  # lies in memory row by row
        tied,
        Piece(own(whole["over dp"], dp, 0).clone(), (dp,)),
        Piece(own(own(whole["over both"], dp, 0), tp, 1).clone(), (tp, dp)),
    ]


def flat(whole):
    return torch.cat([x.flatten().double() for x in whole.values()])


def of_the_whole(me, dp):
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    tp, rows = mesh.get_group("tp"), mesh.get_group("dp")
    found = []
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-6)):
        whole = logical(dtype, me.device)
        for p in ORDERS:
            want = torch.linalg.vector_norm(flat(whole), p)
            for groups in ((tp, rows), (rows, tp)):
                got = norm(pieces_of(whole, tp, rows), groups, p)
                close(f"p = {p}, {dtype}", got, want, bound)
                found.append(got.item())
        assert norm(iter(pieces_of(whole, tp, rows)), (tp, rows)) == norm(
            pieces_of(whole, tp, rows), (tp, rows)
        )  # a generator is walked once
    assert norm([], (tp, rows)).item() == norm([], (tp, rows), math.inf).item() == 0.0
    return found


@pytest.mark.parametrize(("dp", "tp"), MESHES)
def test_a_norm_counts_every_logical_number_once(pool, dp, tp):
    every = pool.run(dp * tp, of_the_whole, dp)
    assert all(one == every[0] for one in every)


def clipped(me, dp):
    """Against torch on the whole tensors: the norm that it returns, and what it leaves."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    tp, rows = mesh.get_group("tp"), mesh.get_group("dp")
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2.0**-8)):
        for p in (1.0, 2.0, math.inf):
            for most in (0.37, 1e6):
                whole = logical(dtype, me.device)
                dense = [nn.Parameter(torch.zeros_like(x)) for x in whole.values()]
                for parameter, x in zip(dense, whole.values(), strict=True):
                    parameter.grad = x.clone()
                want = nn.utils.clip_grad_norm_(dense, most, p)
                mine = pieces_of(whole, tp, rows)
                got = clip(mine, (tp, rows), most, p)
                close(f"{p}, {most}", got, want.double(), max(bound, 1e-12))
                after = dict(zip(whole, (d.grad for d in dense), strict=True))
                real = [x.tensor.flatten()[: x.real] for x in mine]
                wanted = [x.tensor.flatten()[: x.real] for x in pieces_of(after, tp, rows)]
                for one, other in zip(real, wanted, strict=True):
                    close(f"{p}, {most}, {dtype}", one, other, bound)
                if most == 1e6:  # what is short enough stays as it is
                    before = [x.tensor.flatten()[: x.real] for x in pieces_of(whole, tp, rows)]
                    assert all(map(torch.equal, real, before))
                else:
                    left = norm(mine, (tp, rows), p).item()
                    assert left == pytest.approx(most, rel=max(bound, 1e-5))


@pytest.mark.parametrize(("dp", "tp"), [(1, 3), (2, 2)])
def test_clipping_leaves_what_torch_leaves_of_the_whole(pool, dp, tp):
    pool.run(dp * tp, clipped, dp)


def factor_is_not_rounded(me):
    """In bf16 a factor of 0.37/… rounded first would be off by up to 0.4 %, for all alike."""
    x = made("bf16", 1000).to(me.device, torch.bfloat16)
    mine = x.clone()
    total = clip([Piece(mine)], (dist.group.WORLD,), 0.7)
    exact = x.double() * (0.7 / (total + 1e-6))
    assert ((mine.double() - exact).abs() <= exact.abs() * 2.0**-8).all()
    along = (mine.double() * exact).sum() / exact.square().sum()
    assert along.item() == pytest.approx(1.0, abs=3e-4)


def test_the_factor_is_not_rounded_to_the_pieces_dtype(pool):
    pool.run(2, factor_is_not_rounded)


def broken(me, dp):
    """A NaN or an infinity on one rank alone is known to all, whatever the norm."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    groups = (mesh.get_group("tp"), mesh.get_group("dp"))
    found = []
    for bad in range(me.world):
        for value in (math.nan, math.inf, -math.inf):
            for p in (1.0, 2.0, math.inf):
                mine = pieces_of(logical(torch.float32, me.device), *groups)
                if me.rank == bad:
                    mine[1].tensor[0, 0] = value
                total = norm(mine, groups, p).item()
                # Along dp it is a copy: that of the first rank is the one that counts.
                counts = bad < me.world // dp
                found.append(math.isnan(total) if math.isnan(value) else total == math.inf)
                assert found[-1] == counts, (bad, value, p, total)
                if counts and math.isnan(value):
                    clip(mine, groups, 1.0, p)
                    assert all(piece.tensor.isnan().all() for piece in mine)
    return found


@pytest.mark.parametrize(("dp", "tp"), [(1, 3), (2, 2)])
def test_what_is_not_finite_on_one_rank_is_known_to_all(pool, dp, tp):
    every = pool.run(dp * tp, broken, dp)
    assert all(one == every[0] for one in every) and any(every[0])


def counted(me):
    mesh = ranks.mesh(me, dp=2, tp=2)
    groups = (mesh.get_group("tp"), mesh.get_group("dp"))
    found = []
    for p in (2.0, math.inf):
        with ledger(mesh) as book:
            norm(pieces_of(logical(torch.float32, me.device), *groups), groups, p)
        found.append([(r.op, r.axis, r.elements) for r in book.records])
    return found


def test_one_small_sum_for_each_axis(pool):
    for plain, largest in pool.run(4, counted):
        assert plain == [("all_reduce", "tp", 1), ("all_reduce", "dp", 1)]
        assert largest == 2 * [("all_reduce", "tp", 1)] + 2 * [("all_reduce", "dp", 1)]


def refused(me):
    pair = ranks.new_group(me, [0, 1])
    world = dist.group.WORLD
    piece = [Piece(torch.ones(3), (world,))]
    return [
        said(ValueError, norm, piece, (world,), 0.0),
        said(ValueError, norm, piece, (world,), math.nan),
        said(ValueError, clip, piece, (world,), 0.0),
        said(ValueError, clip, piece, (world,), math.nan),
        said(ValueError, norm, piece, ()),
        said(ValueError, norm, piece, (None,)),
        said(ValueError, norm, piece, (pair,)) if me.rank < 2 else "not in groups=",
    ]


@pytest.mark.cpu("meta is the other device")
def test_parts_on_the_host_leave_it_in_one_copy():
    """Each copy to a GPU waits; here the other device is meta."""
    parts = [torch.tensor(float(i)) for i in range(5)]
    with Operations() as seen:
        together = _on_one_device([*parts, torch.empty((), device="meta")], torch.device("meta"))
    assert together.shape == (6,) and together.is_meta
    assert seen.names.count("aten::_to_copy") == 1
    assert torch.equal(_on_one_device(parts, torch.device("cpu")), torch.arange(5.0))


class Operations(TorchDispatchMode):
    """The names of all operations inside."""

    def __enter__(self):
        self.names = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_what_would_be_another_norm_is_refused(pool):
    for found in pool.run(3, refused):
        assert "p=0.0 must be above 0" in found[0] and "p=nan" in found[1]
        assert "most=0.0" in found[2] and "most=nan" in found[3]
        assert "1 of them are not in groups=" in found[4]
        assert "not in the group" in found[5]
        assert "not in groups=" in found[6]
