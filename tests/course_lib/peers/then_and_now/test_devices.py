"""Which devices the deepspeed launcher hands to its ranks: --include, --exclude, and the variable.

Nothing is started: the command with which the launcher would start its ranks is looked at.
"""

from __future__ import annotations

import base64
import json
import types

from tests.course_lib.peers.then_and_now.parts import needs_deepspeed

pytestmark = needs_deepspeed


def test_the_variable_counts_where_nothing_else_is_said(monkeypatch, tmp_path, capsys):
    import deepspeed.launcher.runner as runner

    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.chdir(tmp_path)  # no hostfile, no .deepspeed_env
    started = []

    def popen(command, **more):
        started.append(command)
        return types.SimpleNamespace(returncode=0, pid=0, wait=lambda: 0)

    monkeypatch.setattr(runner, "subprocess", types.SimpleNamespace(Popen=popen))
    monkeypatch.setattr(runner.get_accelerator(), "device_count", lambda: 4)

    def devices(*options, visible=""):
        """What a node's ranks are given, by node."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        runner.main(["--hostfile", str(tmp_path / "none"), *options, "script.py"])
        (world,) = [part for part in started[-1] if part.startswith("--world_info=")]
        return json.loads(base64.urlsafe_b64decode(world.partition("=")[2]))

    assert devices() == {"localhost": [0, 1, 2, 3]}
    assert devices("--num_gpus", "2") == {"localhost": [0, 1]}
    assert devices(visible="2,1") == {"localhost": [1, 2]}
    assert "setting --include=localhost:2,1" in capsys.readouterr().out
    assert devices("--include", "localhost:3,1", visible="2") == {"localhost": [1, 3]}
    assert devices("--exclude", "localhost:0", visible="2") == {"localhost": [1, 2, 3]}
