"""A pytest plugin that writes a line of JSON as each test ends, so an interrupted run loses none.

Names of people and machines are removed, as in the verdict. No lesson derives it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from course_classroom.doctor import privacy

if TYPE_CHECKING:
    import pytest

FILE = "COURSE_ACCEPT_RECORDS"
LONGEST = 3000  # characters of a traceback, from its end
NAMES = privacy.of_this_machine()


def pytest_configure(config: pytest.Config) -> None:
    """Leave the recording to the main process, which receives the workers' reports as well."""
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        config.pluginmanager.unregister(name=__name__)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _write(report, seconds=round(report.duration, 2))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that cannot be collected as an error, and one that skips itself as skipped."""
    if report.outcome != "passed":
        _write(report)


def _write(report: pytest.TestReport | pytest.CollectReport, **more: float) -> None:
    row = {"test": report.nodeid, "outcome": report.outcome, **more}
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        row["why"] = report.longrepr[2].removeprefix("Skipped: ")
    elif report.outcome != "passed":
        row["why"] = _reason(report)
    line = json.dumps(privacy.scrubbed(row, NAMES)) + "\n"
    with open(os.environ[FILE], "ab", buffering=0) as file:  # one call, so no line is incomplete
        file.write(line.encode())


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = f"{crash.message[:400]}\n" if crash else ""
    return message + str(report.longrepr)[-LONGEST:]
