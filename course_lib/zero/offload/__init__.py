"""Offload: what a step does not touch just now waits on the host, or in files.

In the order of reading: plan, host, files, aio, together, folder, layout, pipeline, lending, units,
nvme.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from course_lib.collectives.call import Group
from course_lib.zero.offload.files import Files, Threads
from course_lib.zero.offload.host import HostHome
from course_lib.zero.offload.nvme import FileHome
from course_lib.zero.offload.plan import Plan

__all__ = ["FileHome", "Files", "HostHome", "Plan", "Threads", "home_of"]


def home_of(
    plan: Plan | None,
    optimizer: Optimizer,
    groups: Sequence[Group],
    device: torch.device,
    master: bool,
) -> HostHome | FileHome | None:
    """Where the parts of this rank go by this plan; None where they stay."""
    if plan is None:
        return None
    if plan.optimizer == "cpu":
        return HostHome(device, master=master, parameters=plan.parameters)
    return FileHome(optimizer, plan, groups, device, master=master)
