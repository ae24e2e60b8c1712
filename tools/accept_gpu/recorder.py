"""A pytest plugin: a line of JSON for each test as it ends, so that a run cut off loses none.

Names of people and machines are left out, as in the verdict. No lesson derives it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from course_classroom.doctor import privacy

if TYPE_CHECKING:
    import pytest

FILE = "COURSE_ACCEPT_RECORDS"
LONGEST = 3000  # characters of a traceback, the last ones
NAMES = privacy.of_this_machine()


def pytest_configure(config: pytest.Config) -> None:
    """Leave the work to the process that started this one, which hears of its tests as well."""
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        config.pluginmanager.unregister(name=__name__)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _write(report, seconds=round(report.duration, 2))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be collected is an error, one that skips itself is skipped."""
    if report.outcome != "passed":
        _write(report)


def _write(report: pytest.TestReport | pytest.CollectReport, **more: float) -> None:
    row = {"test": report.nodeid, "outcome": report.outcome, **more}
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        row["why"] = report.longrepr[2].removeprefix("Skipped: ")
    elif report.outcome != "passed":
        row["why"] = _reason(report)
    line = json.dumps(privacy.scrubbed(row, NAMES)) + "\n"
    with open(os.environ[FILE], "ab", buffering=0) as file:  # one call: there is no half line
        file.write(line.encode())


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = f"{crash.message[:400]}\n" if crash else ""
    return message + str(report.longrepr)[-LONGEST:]
