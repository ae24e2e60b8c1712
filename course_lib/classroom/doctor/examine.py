"""The whole examination: every check in order, each guarded, and the report of it as JSON.

Lesson 00 points to `course doctor`; an instructor runs it on every node, a bug report brings it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import course_lib
from course_lib.classroom.doctor import (
    answers,
    build_tools,
    gpus,
    jupyter,
    machine,
    network,
    places,
    privacy,
    software,
    torch_build,
)
from course_lib.classroom.doctor.finding import Check, Finding
from course_lib.classroom.doctor.guard import guarded
from course_lib.classroom.doctor.real_ranks import RealRanks


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    bandwidth: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bad(self) -> list[Finding]:
        return [one for one in self.findings if one.level == "bad"]

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": not self.bad,
            "course": course_lib.__version__,
            "checks": [one.as_json() for one in self.findings],
            "bandwidth": self.bandwidth,
        }


def checks(root: Path, ranks: RealRanks) -> list[Check]:
    """What is looked at, the quick and basic things first."""
    return [
        Check("Python", lambda: software.python(root)),
        Check("packages", lambda: software.packages(root)),
        Check("CPU", machine.cpu),
        Check("memory", machine.memory),
        Check("shared memory", lambda: machine.shared_memory(gpus=len(gpus.listed())), 60.0),
        Check("open files", machine.open_files),
        Check("temporary files", places.temporary),
        Check("the ranks' sockets", places.runtime),
        Check("disk", lambda: places.disk(root)),
        Check("loopback", network.loopback, 60.0),
        Check("host name", network.host_name),
        Check("GPUs", gpus.gpus, 120.0),
        Check("links", gpus.links, 60.0),
        Check("torch", torch_build.torch_build, 120.0),
        Check("GPUs compute", torch_build.gpus_compute, 180.0),
        Check("C++ compiler", build_tools.compiler, 120.0),
        Check("libaio", build_tools.libaio, 120.0),
        Check("JupyterLab", jupyter.jupyterlab, 90.0),
        Check("kernel", jupyter.kernel),
        Check("grading", answers.answers, 150.0),
        Check("all-reduce", ranks.look, 300.0),
    ]


def examine(
    root: Path, world: int = 2, told: Callable[[Finding], None] = lambda finding: None
) -> Report:
    """Run all checks; `told` hears of each finding as it comes, free of private names."""
    private, ranks, report = privacy.of_this_machine(), RealRanks(world), Report()
    for check in checks(root, ranks):
        for found in guarded(check):
            clean = Finding(
                found.name, found.level, private.without(found.found), private.without(found.remedy)
            )
            report.findings.append(clean)
            told(clean)
    report.bandwidth = ranks.rows
    return report
