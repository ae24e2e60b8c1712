"""One face for every stage: `loss = engine(batch)`, `engine.backward(loss)`, `engine.step()`.

The verbs are those of DeepSpeed's engine, so that a lesson can put one in the other's place. What a
stage cuts is in its own file; here is what they share. Lessons 09 to 12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib import norms
from course_lib.collectives import all_reduce
from course_lib.collectives.call import labelled
from course_lib.memory import tier
from course_lib.norms import Piece
from course_lib.tensor_parallel.extents import extents
from course_lib.zero.ddp import SummedGradients, same_everywhere
from course_lib.zero.elementwise import check_elementwise
from course_lib.zero.handover import check_fresh, hand_over
from course_lib.zero.offload import Plan, home_of
from course_lib.zero.partition import BUCKET, partition
from course_lib.zero.precision import Precision
from course_lib.zero.refusals import (
    PAST,
    check_loss,
    check_numbers,
    check_optimizer,
    check_parameters,
    dp_of,
    who_has,
)
from course_lib.zero.shards import Copies, Shards
from course_lib.zero.stage1 import ScatteredGradients
from course_lib.zero.stage2 import ShardGradients
from course_lib.zero.stage3 import UnitGradients, UnitShards
from course_lib.zero.stage3.build import outlined

STAGES = {
    0: (Copies, SummedGradients),
    1: (Shards, ScatteredGradients),
    2: (Shards, ShardGradients),
    3: (UnitShards, UnitGradients),
}


class Engine:
    """A model and its optimizer, cut over the mesh's axis dp as the stage says.

    `norm` is the gradients' norm at the last step, before clipping; `skipped` counts the steps that
    an overflow has cost; `partition` says who holds what.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        stage: int,
        mesh: DeviceMesh,
        precision: str | Precision = "as is",
        accumulate: int = 1,
        clip: float | None = None,
        bucket_bytes: int = BUCKET,
        check: bool = True,
        offload: str | Mapping | Plan | None = None,
        **stage3,
    ):
        plan = Plan.named(offload, stage)
        self.group = dp_of(mesh)
        self.groups = [mesh.get_group(name) for name in mesh.mesh_dim_names]
        check_numbers(stage, accumulate, clip)
        check_optimizer(model, optimizer)
        check_fresh(optimizer)
        if stage3 and stage != 3:
            raise ValueError(f"{', '.join(stage3)} is of stage 3, and this is stage {stage}")
        self.precision = Precision.named(precision)
        if stage:
            check_elementwise(optimizer)
        if self.precision.dtype is not None:  # while a model without numbers takes no memory
            model.to(self.precision.dtype)
        hollow = stage == 3 and outlined(model, optimizer, norms.device_of(self.group))
        self._trained = {p for p in model.parameters() if p.requires_grad}
        self.model, self.optimizer, self.stage = model, optimizer, stage
        self.param_groups = optimizer.param_groups  # by which a ledger knows that `step` is one
        self.accumulate, self.clip, self.check = accumulate, clip, check
        self.norm: float | None = None
        self.skipped = 0
        self._begun = 0  # micro-batches of this step
        self._pending = False  # a backward without its step
        self._tokens: float | None = None
        self._over: str | None = None  # why it can no longer be used
        if not hollow:  # else each rank fills its shards, from one seed or one file
            same_everywhere(model, self.group)
        over_tp = mesh.get_group("tp") if "tp" in mesh.mesh_dim_names else None
        self._extents = extents(model, over_tp)
        make, collect = STAGES[stage]
        master = self.precision.master
        self.device = next(model.parameters()).device
        self.home = home_of(plan, optimizer, self.groups, self.device, master)
        try:
            self._cut(make, collect, master, bucket_bytes, stage3)
        except BaseException:
            if self.home is not None:  # its files are nobody's
                self.home.close()
            raise
        self._finished = 0  # backwards that came through here

    def _cut(self, make, collect, master: bool, bucket_bytes: int, stage3: dict) -> None:
        """Make the shards, collect their gradients, and hand the shards over to the optimizer."""
        if self.home is not None:
            stage3 = {"home": self.home, **stage3}
        if self.stage == 3:
            self.shards = make(self.model, self.group, master=master, **stage3)
        else:
            n = self.group.size() if self.stage else 1
            parts = partition(self.model.named_parameters(), n, most_bytes=bucket_bytes)
            self.shards = make(parts, self.group, master=master, **stage3)
        self.partition = self.shards.partition
        self.gradients = collect(self.partition, self.group, self.shards)
        if self.home is None:
            hand_over(self.optimizer, self.shards)
            return
        with tier("host"):
            hand_over(self.optimizer, self.shards)
        self.home.take_in(self.optimizer, self.shards)

    def __call__(self, *args, **keys):
        self._usable()
        return self.model(*args, **keys)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks of the gradients off, end the offload and remove its files; nothing more
        can be trained. Weights that lay in files are gone: take them out before. On every rank."""
        self.gradients.remove()
        if self.home is not None:
            self.home.close()
        self._over = self._over or "the engine was closed"

    @property
    def boundary(self) -> bool:
        """Whether the next `step` is an update, and not one more micro-batch's end."""
        return self._begun == self.accumulate

    def backward(self, loss: Tensor, tokens: float | None = None) -> None:
        """Add this micro-batch's gradients: of a mean over it, or, with `tokens`, of a sum over so
        many tokens, by whose number on all ranks the sum is divided in the end.

        An error in here loses the gradients of the whole step, whose micro-batches begin anew."""
        self._usable()
        if self._pending:
            raise RuntimeError(
                "backward twice without a step: call engine.step() after each engine.backward(); "
                f"it updates after every {self.accumulate} of them and else does nothing"
            )
        check_loss(loss, tokens)
        if self._begun and (tokens is None) != (self._tokens is None):
            raise ValueError(
                "tokens= was given for some micro-batches of this step and not for others; a sum "
                "and a mean do not add up"
            )
        check_parameters(self.model, self._trained)
        if self.gradients.finished != self._finished:
            raise RuntimeError(PAST)
        self._begun, self._pending = self._begun + 1, True
        if tokens is None:
            factor = 1.0 / (self.group.size() * self.accumulate)
        else:
            factor, self._tokens = 1.0, (self._tokens or 0.0) + float(tokens)
        if self.precision.scale is not None:
            factor *= self.precision.scale.value
        self.gradients.sync = self.boundary or self.stage >= 2
        if self.stage >= 2:
            self.gradients.expect(loss)
        try:
            (loss * factor).backward()
            if self.gradients.finished == self._finished:  # no parameter took part: no hook
                self.gradients.finish()
        except BaseException:
            self.gradients.abandon()
            self._forget()
            raise
        finally:
            self._finished = self.gradients.finished

    @torch.no_grad()
    def step(self) -> bool:
        """Update, at the end of the last micro-batch; before that, do nothing. Whether it did."""
        self._usable()
        if not self.boundary:
            if not self._begun and self.gradients.finished != self._finished:
                raise RuntimeError(PAST)
            self._pending = False
            return False
        factor, scale = self._factor(), self.precision.scale
        good = True
        if self.clip is not None or scale is not None or self.check:
            own = norms.norm(self._pieces(), self.groups, device=self.device)
            self.norm = own.item() * factor
            good = math.isfinite(self.norm)
        if scale is not None:
            scale.after(not good)
        elif not good:
            found = who_has(self._not_finite(), self.groups)
            self._forget()
            raise FloatingPointError(f"a gradient is NaN or infinite, no weight changed: {found}")
        if good:
            if self.clip is not None:
                factor *= min(1.0, self.clip / (self.norm + 1e-6))
            grads = [part.grad for _, part in self.shards.parts() if part.grad is not None]
            if factor != 1.0 and grads:
                torch._foreach_mul_(grads, factor)
            self._update()
        else:
            self.skipped += 1
        self._forget()
        return good

    def gathered(
        self, *what: nn.Module | nn.Parameter, write: bool = False
    ) -> AbstractContextManager:
        """Have these parameters whole in here, on all ranks alike; with `write`, what the group's
        first rank has made of them is kept."""
        self._usable()
        if self.stage == 3:
            return self.shards.gathered(*what, write=write)
        if write:
            raise ValueError("write= is of stage 3; elsewhere load the weights before the engine")
        return nullcontext()

    def _update(self) -> None:
        if self.home is None:
            self.optimizer.step()
            self.shards.gather()
            return
        try:
            self.home.step(self.optimizer, self.shards)
        except BaseException as error:  # it may be half done
            self._over = str(error) or type(error).__name__
            raise

    def _usable(self) -> None:
        if self._over is not None:
            raise RuntimeError(f"this engine can no longer be used: {self._over}")

    def _factor(self) -> float:
        """What the gradients have still to be multiplied with: one over the tokens of all ranks,
        and over the loss scale."""
        factor = 1.0 if self.precision.scale is None else 1.0 / self.precision.scale.value
        if self._tokens is None:
            return factor
        device = norms.device_of(self.group)
        own = torch.tensor(self._tokens, dtype=torch.float64, device=device)
        with labelled("scalars"):
            return factor / (all_reduce(own, self.group, donated=True).item() or 1.0)

    def _pieces(self) -> list[Piece]:
        """This rank's gradients as parts of the logical ones."""
        over_dp = (self.group,) if self.stage else ()
        found = []
        for piece, part in self.shards.parts():
            if part.grad is None:
                continue
            flat = part.grad.reshape(-1)
            for extent in self._extents[piece.slot.parameter]:
                a, b = max(piece.start, extent.start), min(piece.stop, extent.stop)
                if a < b:
                    x = flat[a - piece.start : b - piece.start]
                    found.append(Piece(x, over_dp + extent.cut_over, None, extent.holders))
        return found

    def _forget(self) -> None:
        self._begun, self._pending, self._tokens = 0, False, None
        self.gradients.forget()
        for _, part in self.shards.parts():
            part.grad = None

    def _not_finite(self) -> list[str]:
        return [
            piece.slot.name
            for piece, part in self.shards.parts()
            if part.grad is not None and not bool(part.grad.isfinite().all())
        ]


def engine(model: nn.Module, optimizer: Optimizer, **options) -> Engine:
    """An `Engine` of a model and an optimizer; the options are explained there."""
    return Engine(model, optimizer, **options)
