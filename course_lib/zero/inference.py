"""A model at stage 3 that nobody trains: its weights, sharded over dp, stream through each forward.

A rank holds 1/N of the weights, on the device, the host or in files, and while a unit runs that
unit whole: no gradient, no optimizer's state. ZeRO's other stages shard nothing that is there
without training. Lesson 14.
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
    """A model in evaluation, frozen, its weights sharded over the mesh's axis dp.

    `offload`: where a rank's shards wait between uses: None for the device, "cpu" or
    {"parameters": "nvme", "folder": PATH}. `units`, `prefetch` and `fill` are those of an engine at
    stage 3. `keep`: bytes of units, the smallest first, that stay whole on every rank and are never
    sent again. All ranks of dp call it alike, as often as each other, each with a batch of its own.
    A view of a weight that a forward puts aside is not kept: put a clone aside.
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
                f"keep={keep!r} bytes stay whole: it has to be a whole number, 0 or more"
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
            self.home.close()  # its files are nobody's
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
        """Remove the files; the shards that lay there come to the host's memory. `whole`, on all
        ranks alike, gives the model back as it was: whole on every rank, without hooks, with its
        modes and what is to be trained."""
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
        """Whether weights may be read: always, since no update ever breaks off."""


inference = Inference  # `zero.inference(model, mesh=…)`


def weights_plan(offload: str | Mapping | None) -> OffloadPlan | None:
    """The plan behind `offload=`, or a refusal: there are no states, the weights alone go away."""
    if offload is None:
        return None
    offload = {"parameters": "cpu"} if offload == "cpu" else offload
    if not isinstance(offload, Mapping) or offload.get("parameters") not in ("cpu", "nvme"):
        raise ValueError(
            f"offload={offload!r}: without training there are weights alone to be put away. It "
            "takes 'cpu', or a dict such as {'parameters': 'nvme', 'folder': PATH}"
        )
    if offload.get("optimizer") is not None:
        raise ValueError("offload: optimizer= is of training, and here there is no optimizer")
    # An engine that trains puts its states into files first; here there are none, and what else
    # a plan refuses is refused of these.
    OffloadPlan.named({**offload, "optimizer": offload["parameters"]}, stage=3)
    return OffloadPlan(**{"optimizer": None, **offload})


def weights_home(plan: OffloadPlan | None, groups: Sequence[Group], device: torch.device) -> Home:
    """Where the shards wait."""
    if plan is None:
        return OnDevice()
    if plan.parameters == "cpu":
        return HostHome(device, master=False, parameters="cpu")
    return FileHome(None, plan, groups, device, master=False)
