"""Ranks that are killed anywhere in a save leave a whole checkpoint: the one before, or the new."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import checkpoint
from course_lib.checkpoint import folder
from tests.course_lib.checkpoint.faults import spread
from tests.course_lib.checkpoint.killed_ranks import LAYOUT
from tests.course_lib.checkpoint.parts import engine_of, losses
from tests.support.pool import ROOT

BOUND = 1e-9


def begun(me, top: str) -> list[float]:
    """A checkpoint of step 1; the losses of the three steps after it."""
    with engine_of(me, LAYOUT, top) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        checkpoint.save(top, 1, engine, mesh)
        return losses(engine, mesh, 1, 3)


def next_losses(me, paths: list[str], done: list[int]) -> list[float]:
    """The loss of the step after each checkpoint."""
    after = []
    for path, steps in zip(paths, done, strict=True):
        with engine_of(me, LAYOUT, path, seed="another") as (engine, mesh):
            checkpoint.load(path, engine, mesh)
            after.append(losses(engine, mesh, steps, 1)[0])
    return after


class Saves:
    """Copies of one folder with a checkpoint of step 1, in which ranks save and are killed."""

    def __init__(self, pool, tmp_path: Path):
        self.pool, self.tmp_path, self.first = pool, tmp_path, tmp_path / "first"
        self.after = dict(enumerate(pool.run(2, begun, str(self.first))[0], start=1))
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.course_lib.checkpoint.killed_ranks"],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Saves:
        assert self.exit_codes("counted", 2, None) == [0, 0]
        texts = [(self.tmp_path / f"counted-{rank}.json").read_text() for rank in range(2)]
        self.calls = [json.loads(text) for text in texts]
        return self

    def __exit__(self, *error: object) -> None:
        with self.launcher:
            self.launcher.stdin.close()
            self.launcher.wait(60)

    def exit_codes(self, name: str, step: int, case: tuple | None) -> list:
        """Of the ranks, which save this step in a copy of that name; who is killed, and when."""
        shutil.copytree(self.first, self.tmp_path / name)
        print(json.dumps([str(self.tmp_path / name), step, case]), file=self.launcher.stdin)
        self.launcher.stdin.flush()
        return json.loads(self.launcher.stdout.readline())  # the launcher's own waits are bounded

    def endure(self, cases: dict[str, tuple]) -> dict[str, int]:
        """Kill as each case says, and hold what is left; how many steps each checkpoint has."""
        for name, (step, case) in cases.items():
            want = [-signal.SIGKILL if rank in case[0] else 0 for rank in range(2)]
            assert self.exit_codes(name, step, case) == want, name
        paths = {name: checkpoint.last(self.tmp_path / name) for name in cases}
        for path in paths.values():
            checkpoint.check(path)
        old = (self.first / "step-000001/SHA256SUMS").read_bytes()
        done = {n: 1 if (p / "SHA256SUMS").read_bytes() == old else 2 for n, p in paths.items()}
        arguments = [str(path) for path in paths.values()], list(done.values())
        found = self.pool.run(2, next_losses, *arguments, timeout=30 + len(cases))[0]
        for name, loss in zip(cases, found, strict=True):
            assert loss == pytest.approx(self.after[done[name]], abs=BOUND), name
            top = self.tmp_path / name
            folder.sweep(top)
            inside = {entry.name for entry in top.iterdir()}
            assert inside == {"latest", *(path.name for path in folder.whole(top))}, name
            for path in folder.whole(top):
                checkpoint.check(path)
        return done

    def sixty(self) -> dict[str, tuple]:
        """20 offsets over a save for rank 0, for the other and for both. The other is killed at
        calls of its own, and at calls of rank 0, which writes for longer."""
        zero, other = (spread(20, len(names)) for names in self.calls)
        cases = {f"rank-0-at-{k}": (2, ((0,), 0, n, "")) for k, n in enumerate(zero)}
        cases |= {f"both-at-{k}": (2, ((0, 1), 0, n, "")) for k, n in enumerate(zero)}
        for k in range(20):
            number = (other if k % 2 else zero)[k]
            cases[f"rank-1-at-{k}"] = (2, ((1,), k % 2, number, ""))
        return cases

    def forced(self) -> dict[str, tuple]:
        """Of rank 0's renames the last is that of `latest`, the one before it makes the checkpoint;
        a step that is saved again has one more, which takes the old one out of the way."""
        both, renames = (0, 1), self.calls[0].count("os.rename")
        return {
            "not yet a checkpoint": (2, (both, 0, renames - 1, "os.rename")),
            "latest has not moved": (2, (both, 0, renames, "os.rename")),
            "the old one is still there": (1, (both, 0, renames - 1, "os.rename")),
            "between the two renames": (1, (both, 0, renames, "os.rename")),
            "both renamed": (1, (both, 0, renames + 1, "os.rename")),
        }


def test_ranks_killed_between_the_renames_and_at_drawn_moments_of_a_save(pool, tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # shown where it fails
    with Saves(pool, tmp_path) as saves:
        forced, cases = saves.forced(), saves.sixty()
        drawn = random.Random(seed).sample(sorted(cases), 6)
        done = saves.endure(forced | {name: cases[name] for name in drawn})
    assert [done[name] for name in forced] == [1, 1, 1, 1, 2]
    news = [(tmp_path / name / "step-000002").exists() for name in list(forced)[:2]]
    assert news == [False, True]


@pytest.mark.slow
def test_ranks_killed_at_sixty_moments_of_a_save(pool, tmp_path):
    with Saves(pool, tmp_path) as saves:
        cases = saves.sixty()
        assert len(cases) == 60
        done = list(saves.endure(cases).values())
    assert {1, 2} == set(done) and done.count(1) > 30
