"""The full examination: all checks in order, each guarded against hangs, and the JSON report.

Lesson 00 refers to `course doctor`. Instructors run it on every node and attach it to issues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import course_lib
from course_classroom.doctor import (
    build_tools,
    gpus,
    machine,
    places,
    privacy,
    software,
    torch_build,
)
from course_classroom.doctor.finding import Check, Finding, guarded
from course_classroom.doctor.real_ranks import RealRanks


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    bandwidth: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bad(self) -> list[Finding]:
        return [one for one in self.findings if one.level == "bad"]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON, including torch's environment report."""
        from torch.utils.collect_env import get_pretty_env_info

        return {
            "ok": not self.bad,
            "course": course_lib.__version__,
            "checks": [one.as_json() for one in self.findings],
            "bandwidth": self.bandwidth,
            "collect_env": privacy.of_this_machine().without(get_pretty_env_info()),
        }


def checks(root: Path, ranks: RealRanks) -> list[Check]:
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
        Check("loopback", places.loopback, 60.0),
        Check("host name", places.host_name),
        Check("GPUs", gpus.gpus, 120.0),
        Check("links", gpus.links, 60.0),
        Check("torch", torch_build.torch_build, 120.0),
        Check("GPUs compute", torch_build.gpus_compute, 180.0),
        Check("C++ compiler", build_tools.compiler, 120.0),
        Check("libaio", build_tools.libaio, 120.0),
        Check("CUDA compiler", build_tools.cuda_compiler, 60.0),
        Check("JupyterLab", software.jupyterlab, 90.0),
        Check("kernel", software.kernel),
        Check("grading", software.grading, 150.0),
        Check("all-reduce", ranks.look, 300.0),
    ]


def examine(
    root: Path, world: int = 2, told: Callable[[Finding], None] = lambda finding: None
) -> Report:
    """Run all checks and pass each finding to `told` as it arrives, with private names removed."""
    private, ranks, report = privacy.of_this_machine(), RealRanks(world), Report()
    for check in checks(root, ranks):
        for found in guarded(check):
            texts = private.without(found.found), private.without(found.remedy)
            report.findings.append(Finding(found.name, found.level, *texts))
            told(report.findings[-1])
    report.bandwidth = ranks.rows
    return report
