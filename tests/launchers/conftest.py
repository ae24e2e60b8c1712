from __future__ import annotations

import pytest

from course_lib.launchers.commands import LAUNCHERS, Launcher
from tests.launchers.parts import slurm


@pytest.fixture(autouse=True)
def a_slurm_script_is_a_launcher_too(monkeypatch):
    monkeypatch.setitem(LAUNCHERS, "slurm", Launcher(slurm, "os", ""))
