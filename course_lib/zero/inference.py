"""A model at stage 3 without training: its weights, sharded over dp, are gathered as they are used.

A rank holds 1/N of the weights, on the device, on the host or in files, and all weights of a unit
while it runs, but no gradients or optimizer states. ZeRO's other stages shard only the tensors that
training needs. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.collectives.call import Group, computes_on
from course_lib.zero.ddp import same_everywhere
from course_lib.zero.module_interface import ModuleInterface
from course_lib.zero.offload import FileHome, HostHome, OffloadPlan
from course_lib.zero.optimizer_home import Home, OnDevice
from course_lib.zero.refusals import check_free, check_model, check_places, dp_of
from course_lib.zero.stage3 import Stage3Options, UnitShards
from course_lib.zero.stage3.options import Fill, outlined


class Inference(ModuleInterface):
    """A frozen model in evaluation mode, with its weights sharded over the mesh's axis dp.

    `offload` is the place of a rank's shards between uses: None for the device, "cpu", or
    {"parameters": "nvme", "folder": PATH}. `units`, `prefetch` and `fill` are options of stage 3.
    Units of at most `keep` bytes together, the smallest first, stay gathered and are never sent
    again. All ranks of dp call the model equally often, each with its own batch. A view of a weight
    that a forward pass saves does not stay valid, so save a clone.
    """

    stage = 3

    def __init__(
        self,
        model: nn.Module,
        *,
        mesh: DeviceMesh,
        offload: str | Mapping | None = None,
        units: Sequence[nn.Module] | None = None,
        keep: int = 0,
        prefetch: int = 1,
        fill: Fill | None = None,
    ):
        plan = weights_plan(offload)
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise ValueError(
                f"keep={keep!r}, the bytes that stay gathered, must be an integer of 0 or more"
            )
        self.group = dp_of(mesh)
        self.groups = [mesh.get_group(name) for name in mesh.mesh_dim_names]
        self.model, self._closed = model, False
        check_free(model)
        check_model(model)
        if next(model.parameters(), None) is None:
            raise ValueError("this model has no parameters: there is nothing to shard")
        if not outlined(model, None, computes_on(self.group)):
            same_everywhere(model, self.group)
        self.device = next(model.parameters()).device
        self._modes = [(module, module.training) for module in model.modules()]
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self.home = weights_home(plan, self.groups, self.device)
        options = Stage3Options(units=units, prefetch=prefetch, persist=0, fill=fill)
        try:
            model.eval().requires_grad_(False)
            self.shards = UnitShards(model, self.group, self.home, options)
            self.shards.hooks.leaves_views = False  # a unit's memory goes at once
            self._keep(keep)
        except BaseException:
            self.home.close()  # removes its files
            self._thaw()
            raise
        self.partition = self.shards.partition

    def _keep(self, nbytes: int) -> None:
        for unit in sorted(self.shards.units, key=lambda unit: unit.nbytes):
            nbytes -= unit.nbytes
            if nbytes < 0:
                break
            unit.persistent = True
            unit.gather()

    @torch.no_grad()
    def __call__(self, *args, **keys):
        if self._closed:
            raise RuntimeError("this model can no longer be called through here: it was closed")
        check_places(self.partition)
        return self.model(*args, **keys)

    def close(self, *, whole: bool = False) -> None:
        """Remove the files after moving their shards to the host's memory. `whole`, on all ranks
        together, restores the original model: replicated, without hooks, with its modes and its
        trainable parameters."""
        if not self._closed:
            self._closed = True
            try:
                self.shards.end()
            finally:
                self.home.close()
        if whole:
            self.shards.leave_whole()
            self._thaw()

    def _thaw(self) -> None:
        for module, mode in self._modes:
            module.training = mode
        for p in self._trained:
            p.requires_grad_(True)

    def _sound(self) -> None:
        """Allow reading weights, since no update can be interrupted here."""


inference = Inference  # `zero.inference(model, mesh=…)`


def weights_plan(offload: str | Mapping | None) -> OffloadPlan | None:
    """Return the plan for `offload=`, or raise: without states, only weights can be offloaded."""
    if offload is None:
        return None
    offload = {"parameters": "cpu"} if offload == "cpu" else offload
    if not isinstance(offload, Mapping) or offload.get("parameters") not in ("cpu", "nvme"):
        raise ValueError(
            f"offload={offload!r}: without training, only weights can be offloaded. Pass "
            "'cpu', or a dict such as {'parameters': 'nvme', 'folder': PATH}"
        )
    if offload.get("optimizer") is not None:
        raise ValueError("offload: optimizer= is only for training, but here there is no optimizer")
    # A training engine puts its states into files first. Here there are none, but all other checks
    # of a plan apply.
    OffloadPlan.named({**offload, "optimizer": offload["parameters"]}, stage=3)
    return OffloadPlan(**{"optimizer": None, **offload})


def weights_home(plan: OffloadPlan | None, groups: Sequence[Group], device: torch.device) -> Home:
    """Return the place of the shards between uses."""
    if plan is None:
        return OnDevice()
    if plan.parameters == "cpu":
        return HostHome(device, master=False, parameters="cpu")
    return FileHome(None, plan, groups, device, master=False)
