"""Offload: the host or files keep the tensors that a step does not need at the moment.

Reading order: host, files, plan, shared_errors, folder, file_layout, file_bucket, pipeline, units,
nvme. In addition, copies measures a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from course_lib.collectives.call import Group
from course_lib.zero.offload.files import Files
from course_lib.zero.offload.host import HostHome, LentHome
from course_lib.zero.offload.nvme import FileHome
from course_lib.zero.offload.plan import OffloadPlan
from course_lib.zero.optimizer_home import Home, OnDevice

__all__ = ["FileHome", "Files", "HostHome", "LentHome", "OffloadPlan", "home_of"]


def home_of(
    plan: OffloadPlan | None,
    optimizer: Optimizer,
    groups: Sequence[Group],
    device: torch.device,
    master: bool,
) -> Home:
    """Create the home that a plan requests; without a plan, parts stay on the device."""
    if plan is None:
        return OnDevice(master=master)
    if plan.optimizer is None:
        return LentHome(device, master=master)
    if plan.optimizer == "cpu":
        return HostHome(device, master=master, parameters=plan.parameters)
    return FileHome(optimizer, plan, groups, device, master=master)
