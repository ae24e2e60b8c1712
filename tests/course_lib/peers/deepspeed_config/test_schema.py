"""The keys of a release: those that are shipped are the installed one's."""

from __future__ import annotations

import pytest

from course_lib.peers.deepspeed_config import schema
from tests.course_lib.peers.deepspeed_config.parts import shipped
from tests.support.commands import ROOT, python


def test_the_shipped_keys_are_the_installed_ones():
    if schema.installed() != shipped().release:
        pytest.skip(f"the keys of {shipped().release} are shipped, {schema.installed()} is here")
    done = python("-m", "tools.deepspeed_keys", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_a_key_too_many_and_another_default_are_told():
    pytest.importorskip("deepspeed")
    from tools import deepspeed_keys

    data = schema.json.loads(schema.SHIPPED.read_text(encoding="utf-8"))
    keys = data["root"]["keys"]["zero_optimization"]["section"]["keys"]
    keys["of_no_release"] = {"type": "boolean"}
    keys["stage"]["default"] = 3
    del data["schedulers"]["WarmupLR"]["keys"]["warmup_type"]
    found = list(deepspeed_keys.differences(schema.Schema(data)))
    assert len(found) == 3
    for word in ("zero_optimization.of_no_release", "stage: ", "WarmupLR: warmup_type"):
        assert any(word in line for line in found)


@pytest.mark.parametrize(("release", "word"), [(None, "not installed"), ("0.99.1", "0.99.1 is")])
def test_another_release_than_the_shipped_one_is_said(monkeypatch, release, word):
    monkeypatch.setattr(schema, "installed", lambda: release)
    known = schema.load()
    assert known.data == shipped().data
    assert word in known.note and known.release in known.note
