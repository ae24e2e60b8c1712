"""A kernel that was just started: `%%ranks` says which cell comes first; the real one follows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from course_classroom.cli.base import ROOT
from course_classroom.notebook.unloaded import EXTENSION
from course_classroom.workspace.server import LearnersKernels

FAR = 120.0  # seconds; a machine may be busy
PRESENT = "'RanksMagics' in get_ipython().magics_manager.registry"


@pytest.fixture
def kernel(tmp_path) -> Iterator[KernelManager]:
    """A kernel as `course lab` starts them."""
    manager = KernelManager(kernel_name="python3", kernel_spec_manager=LearnersKernels())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)}
    environment["JPY_SESSION_NAME"] = "/w/notebooks/04_the_megatron_mlp.ipynb"
    manager.start_kernel(env=environment)
    yield manager
    manager.shutdown_kernel(now=True)


def shown_error(content: dict) -> str | None:
    """What a page shows of an error: the story it brings along, or its last line."""
    lines = content.get("traceback", [])
    return lines[0].partition(": ")[2] if len(lines) == 1 else content.get("evalue")


@pytest.fixture
def run(kernel) -> Iterator[Callable[[str], tuple[str, str]]]:
    """How a cell ended in the kernel, and what was to be read below it."""
    client = kernel.blocking_client()
    client.start_channels()
    client.wait_for_ready(FAR)

    def run(cell: str) -> tuple[str, str]:
        read: list[str] = []

        def hook(message: dict) -> None:
            if message["msg_type"] in ("stream", "error", "execute_result"):
                content = message["content"]
                found = content.get("data", {}).get("text/plain") or shown_error(content)
                read.append(content.get("text") or found)

        reply = client.execute_interactive(cell, timeout=FAR, output_hook=hook)
        return reply["content"]["status"], "".join(read)

    # Asked again and again: a message to a kernel that is being replaced may be lost.
    run.wait = lambda: client.wait_for_ready(FAR)
    yield run
    client.stop_channels()


def test_before_the_first_cell_and_after_a_restart_it_says_which_cell_to_run(kernel, run):
    for again in (False, True):
        if again:
            assert run("%load_ext course_classroom")[0] == "ok"
            kernel.restart_kernel(now=True)
            run.wait()
        for cell in ("%%ranks --world 2\nprint(rank)", "%ranks"):
            status, said = run(cell)
            assert status == "error", "what follows is not run"
            assert "first code cell (`%load_ext course_classroom`)" in said
            assert "Run that cell" in said and "Traceback" not in said and "not found" not in said
    names = {'check("mean_over_ranks")': "check", "hint()": "hint", "print(drawn)": "drawn"}
    for cell, name in names.items():
        status, said = run(cell)
        assert status == "error" and said.startswith(
            f"{name} does not exist yet, because this kernel was"
        )
        assert "Run All Above Selected Cell" in said and "Traceback" not in said
    run("import os; os.environ['JPY_SESSION_NAME'] = '/w/my_own.ipynb'")
    assert run("hint()") == ("error", "name 'hint' is not defined"), "no page of the course"


def test_a_copy_of_an_older_release_is_told_what_to_load(run):
    for cell in ("%load_ext course_lib.classroom", "from course_lib.classroom.checks import check"):
        status, said = run(cell)
        assert status == "error" and "`%load_ext course_classroom`" in said and len(said) < 500
        assert said.startswith(
            "course_lib.classroom is no longer in course_lib, because this notebook"
        )
    for name in ("no_such_package", "course_lib.no_such_part"):  # Python's own words
        assert run(f"import {name}") == ("error", f"No module named '{name}'")


def test_the_real_one_takes_its_place_and_keeps_it(run):
    assert run(PRESENT) == ("ok", "False")
    assert run("%load_ext course_classroom") == ("ok", "")
    assert run("drawn") == ("error", "name 'drawn' is not defined")
    assert run("%ranks") == ("ok", "No ranks are running; the next %%ranks cell starts them.\n")
    run(f"%reload_ext {EXTENSION}")
    assert "the next %%ranks cell" in run("%ranks")[1]


def test_only_kernels_of_ipython_are_given_the_extension(monkeypatch):
    other = KernelSpec(argv=["ir", "{connection_file}"])
    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", lambda self, name: other)
    assert LearnersKernels().get_kernel_spec("ir").argv == ["ir", "{connection_file}"]
