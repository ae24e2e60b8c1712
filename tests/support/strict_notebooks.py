"""nbval with its blind spots closed: what is broken in a notebook makes the run fail.

Loaded by the conftest.py at the top of the repository, so that it holds wherever nbval runs. It
refuses what nbval cannot judge, before anything is run, and looks at the kernel after each cell.
"""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Generator
from queue import Empty

import pytest

from tests.support import kernel_watch

START = 180.0  # seconds that a kernel gets to start, on a machine under load
LOOK = 10.0  # seconds that the kernel gets to say what it has noted
TIMED_OUT = "Previous cell timed out"  # in the reason of the marks that nbval sets


def pytest_configure(config: pytest.Config) -> None:
    """Kernels talk over files: a port chosen before it is bound may be another's by then."""
    if not (config.getoption("nbval", False) or config.getoption("nbval_lax", False)):
        return
    import nbval.kernel

    config.option.nbval_kernel_startup_timeout = START

    class OverFiles(nbval.kernel.KernelManager):
        def __init__(self, **options):
            folder = tempfile.mkdtemp(prefix="course-kernel-")
            files = {"ip": f"{folder}/kernel", "connection_file": f"{folder}/kernel.json"}
            super().__init__(transport="ipc", **files, **options)
            weakref.finalize(self, shutil.rmtree, folder, True)

    nbval.kernel.KernelManager = OverFiles


def cells_file(node: object) -> bool:
    return type(node).__name__ == "IPyNbFile"


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> pytest.CollectReport | None:
    """A notebook with a fault is not run at all."""
    if not cells_file(collector):
        return None
    from tests.support.notebook_lint import faults  # IPython is imported where notebooks are tested

    said = faults(collector.path, executed=collector.config.option.nbval)
    if not said:
        return None
    text = "\n".join([f"{collector.path.name} cannot be tested:", *said])
    return pytest.CollectReport(collector.nodeid, "failed", text, [])


@pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's own reading of the xfail marks
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a cell, then ask what nbval does not: of its timeout, its errors, its kernel."""
    notebook = item.parent
    if not cells_file(notebook):
        return (yield)
    if notebook.timed_out:
        item.raise_cell_error("was not run: a cell before it ran past nbval's timeout")
    if not getattr(notebook, "watched", False):
        source = inspect.getsource(kernel_watch)
        ask_kernel(notebook.kernel, INSTALL.format(source=source), "'installed'")
        notebook.watched = True
    result = yield
    for fault in unseen_faults(item):
        item.raise_cell_error(fault)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """After a timeout nbval expects every cell to fail; that expectation must not look green."""
    report = yield
    if TIMED_OUT in (getattr(report, "wasxfail", "") or ""):
        report.outcome = "failed"
        report.longrepr = report.longrepr or report.wasxfail
        del report.wasxfail
    return report


INSTALL = """
import sys as _sys, types as _types
_module = _types.ModuleType("kernel_watch")
exec({source!r}, _module.__dict__)
_module.watch = _module.Watch()
_module.watch.install()
get_ipython().automagic = False  # a magic without its % would be one that no reader can see
_sys.modules["kernel_watch"] = _module
del _sys, _types, _module
"""
REPORT = "__import__('sys').modules['kernel_watch'].watch.report()"


def unseen_faults(item: pytest.Item) -> list[str]:
    """What a cell that nbval has passed did wrong."""
    notebook = item.parent
    if notebook.timed_out:
        limit = item.config.option.nbval_cell_timeout
        return [f"ran past nbval's timeout of {limit:g} s and swallowed the interrupt"]
    outputs = item.test_outputs or []
    if item.options["check_exception"] and not any(o.output_type == "error" for o in outputs):
        return ["was expected to raise an exception, and raised none"]
    printed = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stderr")
    if "UsageError: " in printed:
        return [f"used a magic wrongly, and the rest of the cell was not run: {printed.strip()}"]
    if item.options["skip"]:
        return []
    return json.loads(ast.literal_eval(ask_kernel(notebook.kernel, "", REPORT)))


def ask_kernel(kernel: object, code: str, expression: str) -> str:
    """Run code silently and evaluate an expression in the kernel that nbval has started."""
    sent = kernel.kc.execute(
        code, silent=True, store_history=False, user_expressions={"asked": expression}
    )
    limit = time.monotonic() + LOOK
    try:
        while True:
            reply = kernel.get_message("shell", timeout=max(0.0, limit - time.monotonic()))
            if reply["parent_header"].get("msg_id") == sent:
                break
        kernel.await_idle(sent, LOOK)
    except Empty:
        pytest.fail(f"the kernel did not answer within {LOOK:g} s after the cell", pytrace=False)
    answer = reply["content"].get("user_expressions", {}).get("asked", {})
    if answer.get("status") != "ok":
        pytest.fail(f"the kernel could not be asked: {reply['content']}", pytrace=False)
    return answer["data"]["text/plain"]
