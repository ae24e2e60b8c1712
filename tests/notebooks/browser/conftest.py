"""A learner's JupyterLab on a workspace of its own, and a real browser that looks at it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.notebooks.browser.page import FAR, NotebookPage

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@dataclass(frozen=True)
class Lab:
    """Where JupyterLab is, and the workspace that it shows."""

    address: str
    token: str
    work: Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`course lab` as a learner starts it, on a free port and a workspace that was not there."""
    folder = tmp_path_factory.mktemp("browser")
    work, log = folder / "work", folder / "log"
    variables = {
        **os.environ,
        "COURSE_WORK": str(work),
        "COURSE_RUNTIME_DIR": str(tmp_path_factory.mktemp("r")),
        "COURSE_LEASES": str(tmp_path_factory.mktemp("leases")),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    for name in ("WORLD_SIZE", "COURSE_LEARNERS", "COURSE_SHARE_GPUS"):
        variables.pop(name, None)
    command = [sys.executable, "-m", "course_classroom.cli", "lab", "--no-browser", "--port=0"]
    with open(log, "w") as out:
        process = subprocess.Popen(
            [*command, "--LabApp.expose_app_in_browser=True"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=variables,
        )  # fmt: skip
    try:
        yield _wait_for(process, log, work)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=FAR)


def _wait_for(process: subprocess.Popen, log: Path, work: Path) -> Lab:
    limit = time.monotonic() + FAR
    while time.monotonic() < limit and process.poll() is None:
        found = re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", log.read_text())
        if found:
            return Lab(found[1], found[2], work)
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")  # while it is there, no other test can start a loop of asyncio
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Chromium without a window; skipped, with the reason, where there is none."""
    if BROWSER is None:
        pytest.skip("no Chromium here (apt install chromium): nobody looks at JupyterLab")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    own = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("chromium"))}
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=BROWSER, args=OPTIONS, timeout=FAR * 1e3, env=own
        )
        yield started
        started.close()


Visit = Callable[[str], AbstractContextManager]


@pytest.fixture
def visit(browser, lab: Lab, tmp_path: Path) -> Visit:
    """`with visit(path) as tab`: a file as a visitor sees it who has never been here.

    Whatever fails inside leaves a picture of the screen, and the failure says where.
    """

    @contextmanager
    def visited(path: str) -> Iterator:
        context = browser.new_context(viewport={"width": 1100, "height": 900})
        context.set_default_timeout(FAR * 1e3)
        tab = context.new_page()
        try:
            tab.goto(f"{lab.address}/lab/tree/{path}?token={lab.token}&reset")
            yield tab
        except Exception as error:
            picture = tmp_path / f"{Path(path).stem}.png"  # pytest keeps those of its last runs
            tab.screenshot(path=picture)
            raise AssertionError(f"{error}\nWhat the browser showed: {picture}") from error
        finally:
            context.close()

    return visited


@pytest.fixture
def open_notebook(visit: Visit) -> Callable[[str], AbstractContextManager[NotebookPage]]:
    """`with open_notebook(path) as page`: the notebook is drawn, and its kernel answers."""

    @contextmanager
    def opened(path: str) -> Iterator[NotebookPage]:
        with visit(path) as tab:
            page = NotebookPage(tab, path)
            page.wait_until_open()
            yield page

    return opened
