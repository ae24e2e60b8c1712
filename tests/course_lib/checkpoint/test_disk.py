"""A disk that is full, gone or not to be written to: the checkpoints that were there stay,
nothing of the new one is left, every rank says the same, and the training goes on."""

from __future__ import annotations

import errno
import hashlib
import random
import resource
import shutil
from pathlib import Path

import pytest
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.pretrained.header import CheckpointError
from tests.course_lib.checkpoint.faults import WRITES, Calls, Fault, at, error
from tests.course_lib.checkpoint.parts import Layout, engine_of, losses

LAYOUT = Layout("2x1", 2)
STAY = "and save again. The existing checkpoints have not changed"


def inside(top: str | Path) -> dict[str, str]:
    """Every file below a folder, and a digest of what is in it."""
    files = sorted(path for path in Path(top).rglob("*") if path.is_file())
    return {
        str(file.relative_to(top)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def why_refused(engine, mesh, top: str, step: int, begin=lambda: None, end=list) -> str | None:
    """The one sentence of all ranks, once nothing is seen to have changed; None: it was saved."""
    dist.barrier()
    before = inside(top)
    dist.barrier()
    message = None
    begin()
    try:
        checkpoint.save(top, step, engine, mesh, keep=1)
    except CheckpointError as refusal:
        message = str(refusal)
    finally:
        end()
    messages: list = [None] * dist.get_world_size()
    dist.all_gather_object(messages, message)
    assert set(messages) == {message}
    if message is not None:
        assert inside(top) == before, message
        assert {entry.name[0] for entry in Path(top).iterdir()} <= {"s", "l"}, message
    return message


class Bench:
    """Two ranks, a checkpoint of step 1, and the calls that a save of step 2 makes on each rank."""

    def __init__(self, me, engine, mesh, top: str):
        self.me, self.engine, self.mesh, self.top = me, engine, mesh, top
        self.calls = Calls(top)
        losses(engine, mesh, 0, 1)
        checkpoint.save(top, 1, engine, mesh)
        if me.rank == 0:
            shutil.copytree(top, f"{top}-first")
        losses(engine, mesh, 1, 1)
        self.names = [self.counted(rank, None)[1] for rank in (0, 1)]
        self.forget()

    def counted(self, rank: int, fault: Fault | None) -> tuple[str | None, list[str]]:
        """Save step 2 with a fault on a rank: why that was refused, and the rank's calls."""
        around = (lambda: None, list)
        if self.me.rank == rank:
            around = (lambda: self.calls.begin(fault), self.calls.end)
        message = why_refused(self.engine, self.mesh, self.top, 2, *around)
        names = [self.calls.names]
        dist.broadcast_object_list(names, src=rank)
        return message, names[0]

    def forget(self) -> None:
        """Step 1 is there again, and no other."""
        dist.barrier()
        if self.me.rank == 0:
            shutil.rmtree(self.top)
            shutil.copytree(f"{self.top}-first", self.top)
        dist.barrier()


def some(names: list[str], share: float, dice: random.Random) -> list[int]:
    numbers = range(1, len(names) + 1)
    return [n for n in numbers if names[n - 1] != "pwrite" or dice.random() < share]


def refused_everywhere(me, top: str, share: float, seed: int) -> list:
    """A full disk at one call of a save after another, once and from there on; the calls at which
    it was saved nevertheless."""
    dice, saved, tried = random.Random(seed), set(), 0
    with engine_of(me, LAYOUT, top) as (engine, mesh):
        bench = Bench(me, engine, mesh, top)
        full = error(errno.ENOSPC)
        for rank, names in enumerate(bench.names):
            for number in some(names, share, dice):
                message, _ = bench.counted(rank, at(number, full))
                tried += 1
                if message is None:
                    saved.add(names[number - 1])  # the old checkpoint is being taken away
                    assert "os.rename" not in names[number - 1 :] and rank == 0, number
                    bench.forget()
                else:
                    assert message.startswith(f"rank {rank}: {top}"), message
                    what = " could not be written (No space left on device); make room, "
                    assert what + STAY in message, message
        rest = losses(engine, mesh, 2, 2)
        elsewhere = checkpoint.save(f"{top}-elsewhere", 4, engine, mesh)
        checkpoint.check(elsewhere)
        return [tried, saved, rest]


def undisturbed(me, top: str) -> list[float]:
    with engine_of(me, LAYOUT, top) as (engine, mesh):
        return losses(engine, mesh, 0, 4)


def hold(pool, top: Path, share: float) -> int:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # shown where it fails
    top.mkdir()
    results = pool.run(
        2, refused_everywhere, str(top), share, seed, alone=True, timeout=60 + 200 * share
    )
    tried, saved, rest = results[0]
    assert saved <= {"open r", "os.remove", "os.rmdir"}
    assert (
        rest == pool.run(2, undisturbed, str(top))[0][2:]
    )  # not a bit of the training has changed
    return tried


def test_a_full_disk_at_drawn_calls_of_a_save(pool, tmp_path):
    assert hold(pool, tmp_path / "run", 0.03) > 30


@pytest.mark.slow
def test_a_full_disk_at_every_call_of_a_save(pool, tmp_path):
    assert hold(pool, tmp_path / "run", 1.0) > 100


def kinds_of_faults(me, top: str) -> dict[str, str | None]:
    """What all ranks say to each kind of disk."""
    found = {}
    with engine_of(me, LAYOUT, top) as (engine, mesh):
        bench = Bench(me, engine, mesh, top)
        writes = bench.names[0].count("pwrite")

        def answered(number: int, name: str, rank: int, which: int = 1) -> str | None:
            return bench.counted(rank, at(which, error(number), only=name))[0]

        found["read-only"] = answered(errno.EROFS, "os.mkdir", 0)
        found["forbidden"] = answered(errno.EACCES, "open w", 1)
        found["broken"] = answered(errno.EIO, "fsync", 1)

        def vanish() -> None:
            shutil.rmtree(f"{top}/.step-000002.part")

        found["vanished"] = bench.counted(0, at(writes, vanish, only="pwrite"))[0]
        found["vanished early"] = bench.counted(0, at(1, vanish, only="open w"))[0]
        for rank, room in ((0, 5000), (1, 30_000)):  # before a file has its length; in a write
            dist.barrier()
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            if me.rank == rank:
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
            try:
                found[f"rank {rank} has room for {room}"] = why_refused(engine, mesh, top, 2)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        # Full from some call on, for as long as the save lasts.
        found["full for good"] = bench.counted(1, full_for_good)[0]
        found["not a folder"] = why_not_a_folder(engine, mesh, f"{top}/latest")
        bench.forget()
        found["after"] = why_refused(engine, mesh, top, 2)
    return found


def full_for_good(name: str, _: object) -> None:
    if name in WRITES:
        error(errno.ENOSPC)()


def why_not_a_folder(engine, mesh, top: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(top, 2, engine, mesh)
    return str(caught.value)


def test_each_kind_of_disk_is_told_with_file_cause_and_remedy(pool, tmp_path):
    top = tmp_path / "run"
    found = pool.run(2, kinds_of_faults, str(top), alone=True, timeout=60)[0]
    part = f"{top}/.step-000002.part"
    user, gone = "name a folder that this user can write into", "name one that remains"
    large = "could not be written (File too large); make room"
    want = {
        "read-only": f"rank 0: {part} could not be written (Read-only file system); {user}",
        "forbidden": f"rank 1: {part}/model.safetensors could not be written (Permission denied); "
        f"{user}",
        "broken": f"rank 1: {part}/model.safetensors could not be written (Input/output error); "
        "check the disk, or name a folder on a different disk",
        "vanished": f"rank 0: {part}/config.json could not be written (No such file or directory); "
        f"a folder was removed during the writing; {gone}",
        "vanished early": f"rank 0: {part}/model.safetensors could not be written (No such file "
        f"or directory); a folder was removed during the writing; {gone}",
        "rank 0 has room for 5000": f"rank 0: {part}/model.safetensors {large}",
        "rank 1 has room for 30000": f"rank 1: {part}/model.safetensors {large}",
        "full for good": f"rank 1: {part}/model.safetensors could not be written (No space left on "
        "device); make room",
        "not a folder": f"rank 0: {top}/latest could not be written (File exists); check the disk, "
        "or name a folder on a different disk",
    }
    if found["vanished"].startswith("rank 1"):  # it was slower, and had a file still to open
        want["vanished"] = want["vanished early"].replace("rank 0", "rank 1", 1)
    for name, text in want.items():
        assert found[name] == f"{text}, {STAY}", name
    assert found["after"] is None
