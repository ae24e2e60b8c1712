"""Streams of random numbers: what all ranks draw alike, what each draws alone, what recomputes.

Independence is held by correlation: over n elements, that of independent masks times √n is close
to a standard normal, beyond BOUND with probability 5.7e-7. Seeds are fixed, so no run differs.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from course_lib import ranks
from course_lib.tensor_parallel import randomness
from course_lib.tensor_parallel.randomness import in_step, private, seed_all

N = 20_000  # elements of a mask
P = 0.3
BOUND = 5.0
WORLDS = [2, 3]


def mask(me, n=N):
    """Which elements a dropout on this rank's device keeps, as 0.0 and 1.0."""
    return (F.dropout(torch.ones(n, device=me.device), P) != 0).double().cpu()


def numbers(me, n=5):
    """The next numbers of the CPU's generator and of the device's."""
    return torch.cat([torch.rand(n, device="cpu"), torch.rand(n, device=me.device).cpu()])


def drawn(me):
    """Shared numbers, private masks between them; each rank draws another amount in private."""
    group = dist.group.WORLD
    seed_all(5)
    got = {"shared": [numbers(me)], "private": [], "mask": []}
    for _ in range(2):
        with private(group):
            got["private"].append(mask(me))
            torch.rand(me.rank + 1, device="cpu"), torch.randn(3 * me.rank + 1, device=me.device)
        got["mask"].append(mask(me))
        got["shared"].append(numbers(me))
    in_step(group)
    return got


def independent(masks):
    """No two are correlated, in place or shifted by a little (a stream that only lags behind)."""
    table = torch.stack(masks)
    table = (table - table.mean(1, keepdim=True)) / table.std(1, keepdim=True)
    for lag in range(4):
        near = table[:, lag:] @ table[:, : N - lag].t() / N**0.5  # about standard normal
        if lag == 0:
            near.fill_diagonal_(0.0)
        assert near.abs().max() < BOUND, f"shifted by {lag}: {near}"


@pytest.mark.parametrize("world", WORLDS)
def test_shared_numbers_are_equal_and_private_masks_independent(pool, world):
    got = pool.run(world, drawn)
    for one in got:
        for kind in ("shared", "mask"):
            assert all(map(torch.equal, one[kind], got[0][kind]))
    every = [mask for one in got for mask in one["private"]] + got[0]["mask"]
    for one in every:
        assert abs(one.mean() - (1 - P)) * (N / (P * (1 - P))) ** 0.5 < BOUND
    independent(every)


def nested_and_interrupted(me):
    group = dist.group.WORLD
    seed_all(11)
    with private(group):
        kept = numbers(me)
        with private(group):
            inner = mask(me)
        outer = mask(me)
    after = numbers(me)
    seed_all(11)
    try:
        with private(group):
            again = numbers(me)
            with private(group):
                raise KeyError("in the middle")
    except KeyError:
        pass
    assert torch.equal(kept, again)
    return inner, outer, after, numbers(me)


def test_private_nests_and_an_exception_leaves_the_shared_stream_where_it_was(pool):
    got = pool.run(3, nested_and_interrupted)
    independent([mask for inner, outer, *_ in got for mask in (inner, outer)])
    for _, _, after, interrupted in got:
        assert torch.equal(after, got[0][2])
        assert torch.equal(after, interrupted)


def on_a_mesh(me, dp, tp):
    mesh = ranks.mesh(me, dp=dp, tp=tp)
    seed_all(9, replica=mesh.get_local_rank("dp"))
    tp_group = mesh.get_group("tp")
    in_step(tp_group)
    shared = mask(me)
    with private(tp_group):
        alone = mask(me)
    return shared, alone


@pytest.mark.parametrize(("dp", "tp"), [(2, 2), (3, 1), (1, 3)])
def test_replicas_differ_and_their_tensor_parallel_ranks_agree(pool, dp, tp):
    got = pool.run(dp * tp, on_a_mesh, dp, tp)
    for rank, (shared, _) in enumerate(got):
        assert torch.equal(shared, got[rank // tp * tp][0])
    shared = [got[replica * tp][0] for replica in range(dp)]
    independent([*shared, *(alone for _, alone in got)])


def test_no_seed_of_a_replica_is_that_of_another():
    seeds = {randomness.mix(seed, replica) for seed in range(60) for replica in range(60)}
    assert len(seeds) == 60 * 60
    for seed in (0, 7, -3, 2**32 + 7, 2**64 - 1):  # below 2³², since the CPU reads no more
        of_ranks = [randomness.mix(seed, rank) for rank in range(2000)]
        assert len(set(of_ranks)) == 2000
        assert all(0 <= one < 2**32 for one in of_ranks)
    assert len({randomness.mix(seed, 0) for seed in (7, 2**32 + 7, 2**33 + 7)}) == 3


def layer(x, weight, group):
    """Private dropout in the middle, shared dropout at the end, as in an attention's branch."""
    y = x @ weight
    with private(group):
        y = F.dropout(y, P)
    return x + F.dropout(torch.tanh(y) @ weight.t(), P)


def stored_or_recomputed(me):
    """Outputs and gradients of two layers: kept, and recomputed in both forms."""
    group = dist.group.WORLD
    made = torch.Generator().manual_seed(21)
    start = torch.randn(6, 10, generator=made).to(me.device)
    weights = [torch.randn(10, 14, generator=made).to(me.device) for _ in range(2)]
    got = []
    for form in (None, True, False):
        seed_all(31)
        x = start.clone().requires_grad_()
        ws = [weight.clone().requires_grad_() for weight in weights]
        y = x
        for w in ws:
            y = layer(y, w, group) if form is None else again(y, w, group, form)
        between = numbers(me)  # forward and backward of a step are not neighbours
        y.square().sum().backward()
        in_step(group)
        result = [y, x.grad, *(w.grad for w in ws)]
        got.append([one.detach().cpu() for one in result] + [between, numbers(me)])
    return got


def again(x, weight, group, form):
    return checkpoint(layer, x, weight, group, use_reentrant=form)


@pytest.mark.parametrize("world", [1, 3])
def test_recomputed_is_stored_bit_by_bit(pool, world):
    # Torch's checkpoint brings the compiler along, and a busy machine takes its time over that.
    got = pool.run(world, stored_or_recomputed, timeout=90)
    for stored, *others in got:
        for other in others:
            assert all(map(torch.equal, stored, other))
    outputs = [stored[0] for stored, *_ in got]
    for one, other in itertools.combinations(outputs, 2):
        assert not torch.equal(one, other)  # or there was nothing private in it


def steps_of(me, odd):
    """What in_step says when `odd` has drawn once too often, and inside private()."""
    said = []
    everybody = dist.group.WORLD
    some = ranks.new_group(me, [1, 2])
    for group in (everybody, some) if me.rank in (1, 2) else (everybody,):
        seed_all(13)
        in_step(group)
        if me.rank == odd:
            torch.rand(1, device="cpu")
        said.append(refused(in_step, group))
        seed_all(13)
        with private(group):
            said.append(refused(in_step, group))
        in_step(group)
    if me.device.type == "cuda":  # the GPU has a stream of its own
        torch.rand(1, device=me.device)
        if me.rank == odd:
            torch.rand(1, device=me.device)
        said.append(refused(in_step, everybody))
    return said


def refused(call, *args, **options):
    try:
        call(*args, **options)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("odd", [0, 2])
def test_in_step_names_the_rank_that_strayed(pool, odd):
    got = pool.run(3, steps_of, odd)
    for said in got:
        start = f"RuntimeError: the shared random stream of rank {odd} (CPU) differs"
        assert said[0].startswith(start)
        assert "this group of 3" in said[0] and "seed_all" in said[0]
        assert "rank 1 (" in said[1] and "rank 2 (" in said[1] and "rank 0" not in said[1]
    for said in got[1:]:  # in the group of 1 and 2, by their numbers in the world
        if odd == 0:
            assert said[2] is None
        else:
            assert "of rank 2 (CPU)" in said[2] and "this group of 2" in said[2]
    if torch.cuda.is_available():
        for said in got:
            assert f"of rank {odd} (GPU)" in said[-1]


def enter(*args, **options):
    with private(*args, **options):
        pass


def wrong_calls(me):
    """Each refusal; the stream must not have moved in any of them."""
    everybody, other = dist.group.WORLD, ranks.new_group(me, [1 - me.rank % 2])
    seed_all(17)
    said = [
        refused(enter, None if me.rank == 0 else other),
        refused(in_step, other),
        refused(enter, everybody, dim=1),
        refused(enter, everybody, whole=6),
        refused(enter, everybody, start=2),
        refused(enter, everybody, dim=0, start=7, whole=6),
        refused(enter, everybody, dim=0, start=-1, whole=6),
        refused(seed_all, 3, replica=-1),
    ]
    after = numbers(me)
    seed_all(17)
    assert torch.equal(after, numbers(me))
    with pytest.raises(TypeError):
        seed_all(1.5)
    return said


def test_calls_that_are_refused(pool):
    for said in pool.run(2, wrong_calls):
        assert "not in the group" in said[0] and "not in the group" in said[1]
        assert all("pass all three" in one for one in said[2:5])
        assert (
            "private(start=7) is outside of a dim of 6" in said[5]
            and "private(start=-1)" in said[6]
        )
        assert "replica=-1" in said[7]


def cpu_beside_the_gpu(me):
    """A rank with a GPU may still drop out on the CPU: both streams are forked."""
    seed_all(19)
    with private(dist.group.WORLD):
        alone = [(F.dropout(torch.ones(N), P) != 0).double(), mask(me)]
    in_step(dist.group.WORLD)
    return alone, numbers(me)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("world", [1, 2, 3])
def test_both_streams_of_a_rank_with_a_gpu_are_private(pool, world):
    got = pool.run(world, cpu_beside_the_gpu)
    independent([mask for alone, _ in got for mask in alone])
    assert all(torch.equal(after, got[0][1]) for _, after in got)
