"""The keys of a release: those that are shipped are the installed one's, and any other is read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from course_lib.deepspeed_config import schema
from course_lib.deepspeed_config.read_schema import FORMAT
from tests.deepspeed_config.parts import shipped

CACHE = "XDG_CACHE_HOME"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def another(release: str) -> dict:
    """The keys of a made-up release, with one of its own."""
    data = json.loads(schema.SHIPPED.read_text())
    data["release"] = release
    data["root"]["keys"]["of_another_release"] = {"type": "boolean", "default": False}
    return data


def test_the_shipped_keys_are_the_installed_ones():
    deepspeed = pytest.importorskip("deepspeed")
    data = shipped().data
    if not deepspeed.__version__.startswith(data["release"]):
        pytest.skip(f"the keys of {data['release']} are shipped, this is {deepspeed.__version__}")
    command = [sys.executable, "-m", "course_lib.deepspeed_config.read_schema"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    read = json.loads(done.stdout)
    for part in read:
        assert read[part] == data[part], (
            f"{part}: write them anew with python -m course_lib.deepspeed_config.read_schema > "
            f"{schema.SHIPPED}"
        )
    assert done.stdout == schema.SHIPPED.read_text()


def test_what_is_shipped_is_of_this_making():
    assert shipped().data["format"] == schema.FORMAT == FORMAT
    assert schema._checked(schema.SHIPPED.read_text(), shipped().release)


def test_the_pinned_release_needs_no_process_and_no_cache(cache, monkeypatch):
    monkeypatch.setattr(schema, "installed", lambda: shipped().release)
    monkeypatch.setattr(schema, "_read", None)
    assert schema.load() == schema.Schema(shipped().data)
    assert not cache.exists()


def test_without_deepspeed_the_shipped_keys_count_and_it_is_said(cache, monkeypatch):
    monkeypatch.setattr(schema, "installed", lambda: None)
    known = schema.load()
    assert known.data == shipped().data
    assert "not installed" in known.note and known.release in known.note


def test_another_release_is_read_once_and_kept(cache, monkeypatch):
    calls = []
    monkeypatch.setattr(schema, "installed", lambda: "0.99.1")
    monkeypatch.setattr(
        schema, "_read", lambda release: (calls.append(1), (another(release), ""))[1]
    )
    for _ in range(2):
        known = schema.load()
        assert "of_another_release" in known.root["keys"] and known.note == ""
        assert known.release == "0.99.1"
    assert calls == [1]
    assert [item.name for item in (cache / "course_lib").iterdir()] == ["deepspeed-0.99.1.json"]


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"format":1}', "\x00" * 40, "other format", "other release", "no kind"],
)
def test_a_damaged_cache_is_read_anew(cache, monkeypatch, damage):
    monkeypatch.setattr(schema, "installed", lambda: "0.99.1")
    monkeypatch.setattr(schema, "_read", lambda release: (another(release), ""))
    place = schema.kept_at("0.99.1")
    place.parent.mkdir(parents=True)
    kept = another("0.99.0" if damage == "other release" else "0.99.1")
    kept["root"]["keys"]["stale"] = {"type": "boolean"} if damage != "no kind" else "boolean"
    kept["format"] += damage == "other format"
    place.write_text(json.dumps(kept) if " " in damage else damage)
    known = schema.load()
    assert "of_another_release" in known.root["keys"]
    assert "stale" not in known.root["keys"]
    assert json.loads(place.read_text()) == known.data


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("import sys; print('no such op', file=sys.stderr); sys.exit(1)", "no such op"),
        ("print('{}')", "not understood"),
        ("print('[1')", "not understood"),
        ("import time; time.sleep(60)", "did not tell"),
    ],
)
def test_where_reading_fails_the_shipped_keys_count_and_it_is_said(
    cache, monkeypatch, tmp_path, script, word
):
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!{sys.executable}\n{script}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(schema, "installed", lambda: "0.99.1")
    monkeypatch.setattr(schema, "PATIENCE", 1.0 if "sleep" in script else 60.0)
    monkeypatch.setattr(schema.sys, "executable", str(stand_in))
    known = schema.load()
    assert known.data == shipped().data
    assert "0.99.1" in known.note and word in known.note
    assert not cache.exists(), "what failed is not kept"


def test_a_cache_that_cannot_be_written_is_no_trouble(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE, str(tmp_path / "file"))
    monkeypatch.setattr(schema, "installed", lambda: "0.99.1")
    monkeypatch.setattr(schema, "_read", lambda release: (another(release), ""))
    assert schema.load().release == "0.99.1"


def test_a_release_is_found_without_importing_it():
    script = (
        "import sys; from course_lib.deepspeed_config import schema; "
        "print(schema.installed()); print('deepspeed' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    release, imported = done.stdout.split()
    assert imported == "False"
    try:
        import deepspeed
    except ImportError:
        assert release == "None"
    else:
        assert deepspeed.__version__.startswith(release)
