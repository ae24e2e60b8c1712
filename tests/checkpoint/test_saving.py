"""What a save demands of the ranks: that each element was written by one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib import checkpoint
from course_lib.checkpoint import saving
from course_lib.pretrained.header import CheckpointError
from tests.checkpoint.parts import Layout, engine_of, losses


class Forgetful(saving.Pen):
    """A pen that leaves one weight out, or writes it twice."""

    times = 0

    def put(self, name, box, x) -> None:
        for _ in range(self.times if name.endswith("mlp.c_fc.bias") else 1):
            super().put(name, box, x)


def forgotten(me, top: str, times: int) -> str:
    with engine_of(me, Layout("2x1", 2), top) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        checkpoint.save(top, 1, engine, mesh)
        real, Forgetful.times = saving.Pen, times if me.rank == 1 else 1
        saving.Pen = Forgetful
        try:
            with pytest.raises(CheckpointError) as caught:
                checkpoint.save(top, 2, engine, mesh)
        finally:
            saving.Pen = real
        checkpoint.save(top, 2, engine, mesh)
        return str(caught.value)


@pytest.mark.parametrize("times", [0, 2])
def test_what_no_rank_has_written_is_no_checkpoint(pool, tmp_path, times):
    messages = pool.run(2, forgotten, str(tmp_path / "run"), times)
    assert len(set(messages)) == 1
    assert "mlp.c_fc.bias: the ranks wrote " in messages[0] and " of its 14 elements" in messages[0]
    entries = {entry.name for entry in Path(tmp_path / "run").iterdir()}
    assert entries == {"latest", "step-000001", "step-000002"}
