"""A machine without libaio: DeepSpeed's attempts to link with it are not shown above results."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import python

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.cpu("about what a linker writes")

COMPILER = """#!/bin/sh
for word in "$@"; do
  if [ "$word" = "-laio" ]; then echo "ld: cannot find -laio" >&2; exit 1; fi
done
exec {gcc} "$@"
"""
# A kernel's sys.stderr is another file than the one that a child process inherits.
ASK = """
import os, sys

class Stream:
    def __init__(self, number): self.number = number
    def write(self, text): os.write(self.number, text.encode())
    def flush(self): pass
    def fileno(self): return self.number

sys.stderr = Stream(os.dup(2))
from course_lib.peers.ways import with_deepspeed
print(with_deepspeed.has_files())
"""


def test_a_linker_that_finds_no_libaio_is_not_heard(tmp_path: Path) -> None:
    gcc = subprocess.run(["which", "gcc"], capture_output=True, text=True, check=False).stdout
    if not gcc:
        pytest.skip("there is no gcc here")
    for name in ("gcc", "cc", f"{os.uname().machine}-linux-gnu-gcc"):
        (tmp_path / name).write_text(COMPILER.format(gcc=gcc.strip()))
        (tmp_path / name).chmod(0o755)
    done = python("-c", ASK, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout == "False\n", done.stderr
    assert "laio" not in done.stderr
