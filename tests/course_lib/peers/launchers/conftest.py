from __future__ import annotations

import pytest

from course_lib.peers.launchers.commands import LAUNCHERS, Launcher
from tests.course_lib.peers.launchers.parts import slurm


@pytest.fixture(autouse=True)
def a_slurm_script_is_a_launcher_too(monkeypatch):
    monkeypatch.setitem(LAUNCHERS, "slurm", Launcher(slurm, "os", ""))
