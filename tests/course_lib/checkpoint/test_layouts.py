"""Saved at one layout, gone on with at another: the same next losses, whatever the two are."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from course_lib import checkpoint
from tests.course_lib.checkpoint.parts import (
    MESHES,
    OFFLOADS,
    Layout,
    engine_of,
    every_layout,
    losses,
)

STEPS = 2  # before the save, and as many after it
BOUND = 1e-9  # of float64: only the order of sums differs


def saved(me, layouts, folder: str, family: str) -> dict[str, list[float]]:
    """Train each and save it; its losses after that."""
    after = {}
    for layout in layouts:
        with engine_of(me, layout, folder, family) as (engine, mesh):
            losses(engine, mesh, 0, STEPS)
            checkpoint.save(f"{folder}/{layout.name}", STEPS, engine, mesh)
            after[layout.name] = losses(engine, mesh, STEPS, STEPS)
    return after


def gone_on_with(me, pairs, folder: str, family: str) -> list[list[float]]:
    after = []
    for source, layout in pairs:
        with engine_of(me, layout, folder, family, seed="another") as (engine, mesh):
            checkpoint.load(f"{folder}/{source.name}/step-{STEPS:06d}", engine, mesh)
            after.append(losses(engine, mesh, STEPS, STEPS))
    return after


def by_world(items, world_of) -> dict[int, list]:
    worlds: dict[int, list] = {}
    for item in items:
        worlds.setdefault(world_of(item), []).append(item)
    return worlds


def hold(pool, folder: Path, pairs, family: str = "gpt2") -> None:
    """The pairs (saved at, gone on with at) give the losses of one process without a save."""
    sources = dict.fromkeys(source for source, _ in pairs)
    whole = Layout("1x1", 0)
    sources[whole] = None
    want: dict[str, list[float]] = {}
    for world, layouts in by_world(sources, lambda layout: layout.world).items():
        for after in pool.run(world, saved, layouts, str(folder), family, timeout=300):
            for name, values in after.items():
                want[name] = values
    for values in want.values():
        assert values == pytest.approx(want[whole.name], abs=BOUND)
    for world, some in by_world(pairs, lambda pair: pair[1].world).items():
        for every in pool.run(world, gone_on_with, some, str(folder), family, timeout=600):
            for (source, layout), values in zip(some, every, strict=True):
                assert values == pytest.approx(want[whole.name], abs=BOUND), (source, layout)
                if source == layout:
                    assert values == want[source.name], f"not bit for bit: {layout}"


def drawn(count: int, seed: int) -> list[tuple[Layout, Layout]]:
    dice = random.Random(seed)

    def one() -> Layout:
        stage = dice.choice((0, 1, 2, 3))
        offload = dice.choice(OFFLOADS) if stage else None
        return Layout(dice.choice(list(MESHES)), stage, offload)

    return [(one(), one()) for _ in range(count)]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_drawn_pairs_go_on_alike(pool, tmp_path, family):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # shown where it fails
    hold(pool, tmp_path, drawn(8, seed), family)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "one-kv"])
def test_all_pairs_go_on_alike(pool, tmp_path, family):
    dice = random.Random(19)
    layouts = [
        Layout(one.mesh, one.stage, dice.choice(OFFLOADS) if one.stage else None)
        for one in every_layout()
    ]
    assert min(Counter(one.offload for one in layouts).values()) * len(layouts) >= 30
    hold(pool, tmp_path, [(a, b) for a in layouts for b in layouts], family)
