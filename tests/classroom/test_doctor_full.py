"""A full folder for temporary files: each check that it fails names it, and blames nothing else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from course_lib.classroom.doctor import build_tools, places
from course_lib.classroom.doctor.finding import Finding
from course_lib.classroom.doctor.real_ranks import RealRanks

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def full(tmp_path, monkeypatch) -> Path:
    """A folder for temporary files in which nothing of size can be written."""
    folder, write = tmp_path / "full", places._write
    folder.mkdir()

    def refuse(where: Path) -> None:
        if folder in (where, *where.parents):
            raise NO_SPACE
        write(where)

    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # Python asks again where to write
    monkeypatch.setattr(places, "_write", refuse)
    return folder


def blamed(found: Finding, folder: Path) -> bool:
    """Whether the finding names the folder, says that it is full, and how to go on."""
    return f"{folder} is full" in found.found and "TMPDIR=" in found.remedy


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_folder_is_named_also_where_python_has_gone_to_another(
    full, tmp_path, monkeypatch, elsewhere
):
    if elsewhere:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = only(places.temporary())
    assert found.level == "bad" and blamed(found, full)


def test_a_compiler_is_not_blamed_for_a_full_folder(full, tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'a.s: Assembler messages:' >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    found = only(build_tools.compiler())
    assert found.level == "bad" and blamed(found, full)
    assert "c++" not in found.found and "apt-get" not in found.remedy
    found = only(build_tools.libaio())
    assert blamed(found, full) and "header" not in found.found


def test_a_folder_too_full_for_the_source_is_no_crash(full, monkeypatch):
    def refuse(*_, **__):
        raise NO_SPACE

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setenv("CXX", sys.executable)
    assert blamed(only(build_tools.compiler()), full)


def test_ranks_that_cannot_write_name_the_folder(full, monkeypatch):
    def refuse(self) -> None:
        raise NO_SPACE

    monkeypatch.delenv("COURSE_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("course_lib.classroom.cluster.Cluster.start", refuse)
    found = only(RealRanks(2).look())
    assert found.level == "bad" and blamed(found, full / f"course-{os.getuid()}")


LOOK = """
import json
from course_lib.classroom.doctor import build_tools, places
for look in (places.temporary, build_tools.compiler):
    print(json.dumps([one.as_json() for one in look()]))
"""


@pytest.mark.skipif(not build_tools.find_compiler(), reason="no C++ compiler is on the PATH")
def test_a_real_small_disk(tmp_path):
    """64 kB in a mount of the child's own, which goes with it."""
    mount = f'mount -t tmpfs -o size=64k none "{tmp_path}" && exec "$@"'
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "-"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(
        [*alone, sys.executable, "-c", LOOK],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for line in done.stdout.splitlines():
        (found,) = json.loads(line)
        assert found["level"] == "bad" and f"{tmp_path} is full: 65.5 kB free" in found["found"]
        assert "TMPDIR=" in found["remedy"]
