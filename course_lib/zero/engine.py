"""One interface for every stage: `loss = engine(batch)`, `engine.backward(loss)`, `engine.step()`.

DeepSpeed's engine has the same verbs, so that a lesson can swap the two. Each stage shards in its
own file, and this file has the common part. Lessons 09 to 12.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib import norms
from course_lib.collectives.call import computes_on
from course_lib.meta import numbers
from course_lib.tensor_parallel.extents import extents
from course_lib.zero.buckets import Gradients
from course_lib.zero.ddp import SummedGradients, same_buffers, same_everywhere
from course_lib.zero.gradient_guard import Edits
from course_lib.zero.gradient_pieces import gradient_pieces, not_finite
from course_lib.zero.micro_batches import MicroBatches
from course_lib.zero.module_interface import ModuleInterface
from course_lib.zero.offload import OffloadPlan, home_of
from course_lib.zero.optimizer_parts import check_elementwise, check_fresh, hand_over
from course_lib.zero.partition import BUCKET, partition
from course_lib.zero.precision import Precision
from course_lib.zero.refusals import (
    PAST,
    check_free,
    check_loss,
    check_model,
    check_numbers,
    check_optimizer,
    check_parameters,
    check_places,
    dp_of,
    step_guard,
    who_has,
)
from course_lib.zero.shards import Copies, Shards
from course_lib.zero.stage1 import ScatteredGradients
from course_lib.zero.stage2 import ShardGradients
from course_lib.zero.stage3 import Stage3Options, UnitGradients, UnitShards
from course_lib.zero.stage3.options import outlined
from course_lib.zero.training_state import TrainingState

STAGES = {  # (shards, gradients) of each stage
    0: (Copies, SummedGradients),
    1: (Shards, ScatteredGradients),
    2: (Shards, ShardGradients),
    3: (UnitShards, UnitGradients),
}


class Engine(ModuleInterface, TrainingState):
    """A model and its optimizer, sharded over the mesh's axis dp as the stage requires.

    `norm` is the gradients' norm at the last step, before clipping. `skipped` counts the steps lost
    to an overflow. `partition` describes the shards of each rank, and `extents` their sharding by
    tensor parallelism. `elementwise` is the user's guarantee for an optimizer that is not torch's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        stage: int,
        mesh: DeviceMesh,
        precision: str | torch.dtype | Precision = "as is",
        accumulate: int = 1,
        clip: float | None = None,
        bucket_bytes: int = BUCKET,
        check: bool = True,
        offload: str | Mapping | OffloadPlan | None = None,
        elementwise: bool = False,
        **stage3,
    ):
        named = list(inspect.signature(Engine).parameters)[:-1]
        options = Stage3Options.named(stage3, named, stage)
        plan = OffloadPlan.named(offload, stage)
        check_numbers(stage, accumulate, clip)
        self.model, self.optimizer, self.stage = model, optimizer, stage
        self.param_groups = optimizer.param_groups  # by which a ledger recognizes `step`
        self.accumulate, self.clip, self.check = accumulate, clip, check
        self.precision = Precision.named(precision)
        self.norm: float | None = None
        self.skipped = 0
        self._micros = MicroBatches(accumulate)
        self._over: str | None = None  # the reason why it can no longer be used
        self._closed = self.updating = False
        self._finished = 0  # backward passes through this engine
        if stage:
            check_elementwise(optimizer, vouched=elementwise)
        self._prepare(mesh)
        self.home = home_of(plan, optimizer, self.groups, self.device, self.precision.master)
        try:
            self.shards, self.gradients = self._cut(bucket_bytes, options)
            self._hand_over()
        except BaseException:
            self.home.close()  # removes its files
            raise

    def _prepare(self, mesh: DeviceMesh) -> None:
        """Refuse unsuitable inputs; set the model's dtype, and the same values on every rank.

        The order matters: a model without values changes its dtype while it uses no memory."""
        self.group = dp_of(mesh)
        self.groups = [mesh.get_group(name) for name in mesh.mesh_dim_names]
        check_free(self.model)
        check_model(self.model)
        check_optimizer(self.model, self.optimizer)
        check_fresh(self.optimizer)
        if self.precision.dtype is not None:
            self.model.to(self.precision.dtype)
        device = computes_on(self.group)
        hollow = self.stage == 3 and outlined(self.model, self.optimizer, device)
        if not hollow:  # else each rank fills its shards from a seed or a file
            same_everywhere(self.model, self.group)
        self._trained = {p for p in self.model.parameters() if p.requires_grad}
        tp = mesh.get_group("tp") if "tp" in mesh.mesh_dim_names else None
        self.extents = extents(self.model, tp)
        self.device = next(self.model.parameters()).device

    def _cut(self, bucket_bytes: int, options: Stage3Options) -> tuple[Copies, Gradients]:
        """Create the stage's shards of the model, in their home, and its gradients."""
        make, collect = STAGES[self.stage]
        if self.stage == 3:
            shards = make(self.model, self.group, self.home, options)
        else:
            n = self.group.size() if self.stage else 1
            parts = partition(self.model.named_parameters(), n, most_bytes=bucket_bytes)
            shards = make(parts, self.group, self.home)
        return shards, collect(shards.partition, self.group, shards)

    def _hand_over(self) -> None:
        """Give the optimizer this rank's parts, and ensure that only the engine steps it."""
        self.partition = self.shards.partition
        with self.home.placed():
            hand_over(self.optimizer, self.shards)
        self.home.take_in(self.optimizer)
        self._edits = Edits(self.stage, self.gradients, self.shards, sample=self._looks)
        self._step_hook = self.optimizer.register_step_pre_hook(step_guard(self))

    def __call__(self, *args, **keys):
        self._usable()
        check_places(self.partition)
        return self.model(*args, **keys)

    def close(self, *, whole: bool = False) -> None:
        """End the training: remove the gradients' hooks, end the offload, remove its files.

        At stage 3 the weights stay sharded, and weights in files move to the host's memory;
        `state_dict()` and `gathered` still return them. `whole`, on all ranks together, restores
        the original model, replicated and without hooks."""
        if not self._closed:
            self._closed = True
            self.gradients.remove()
            self._step_hook.remove()
            self._forget()
            try:
                if self.stage == 3 and self._over is None:
                    self.shards.end()
            finally:
                self.home.close()
        if whole and self.stage == 3 and self._over is None:
            self.shards.leave_whole()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients since the last step, as `step` does; micro-batches start again."""
        self._usable()
        self._finished = self.gradients.finished
        self._forget()

    # ---- a step
    @property
    def boundary(self) -> bool:
        """True if the next `step` is an update instead of the end of a micro-batch."""
        return self._micros.complete

    def backward(self, loss: Tensor, tokens: float | None = None) -> None:
        """Add this micro-batch's gradients. The loss is a mean, or, with `tokens`, a sum over that
        many tokens, which is finally divided by the tokens of all ranks.

        After an error in this call, the step's gradients are lost, so repeat its micro-batches."""
        self._usable()
        check_loss(loss, tokens)
        self._micros.check(tokens)
        check_parameters(self.model, self._trained)
        check_places(self.partition)
        if self.gradients.finished != self._finished:
            raise RuntimeError(PAST)
        self._edits.before_backward()
        factor = self._micros.begin(tokens, self.group.size())
        if self.precision.scale is not None:
            factor *= self.precision.scale.value
        self.gradients.sync = self.boundary or self.stage >= 2
        if self.stage >= 2:
            self.gradients.expect(loss)
        try:
            (loss * factor).backward()
            if self.gradients.finished == self._finished:  # no parameter took part, so no hook ran
                self.gradients.finish()
        except BaseException:
            self.gradients.abandon()
            self._forget()
            raise
        finally:
            self._finished = self.gradients.finished
        if self.boundary and self.model.training:
            same_buffers(self.model, self.group)
        self._edits.after_backward(summed=self.gradients.sync)

    @torch.no_grad()
    def step(self) -> bool:
        """Update after the last micro-batch, otherwise do nothing; return True for an update."""
        self._usable()
        if not self.boundary:
            if not self._micros.begun and self.gradients.finished != self._finished:
                raise RuntimeError(PAST)
            self._micros.pending = False
            return False
        scale = self.precision.scale
        factor = (1.0 if scale is None else 1.0 / scale.value) / self._micros.divisor(self.group)
        self._edits.before_step(ready=factor == 1.0)
        good = True
        if self._looks:
            pieces = gradient_pieces(self.shards, self.extents, self.group if self.stage else None)
            summed = norms.norm(pieces, self.groups, device=self.device)
            self.norm = numbers(summed, 0.0) * factor
            good = math.isfinite(self.norm)
        if scale is not None:
            try:
                scale.after(not good)
            except FloatingPointError:
                self._forget()
                raise
        elif not good:
            found = who_has(not_finite(self.shards), self.groups)
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

    def _update(self) -> None:
        self.updating = True
        try:
            with self.home.together(update=True):
                self.shards.take_over()
                self.home.step(self.optimizer)
            self.shards.gather()
            self.home.updated()
        except BaseException as error:
            if not self.home.survives_errors:
                self._over = str(error) or type(error).__name__
            raise
        finally:
            self.updating = False

    @property
    def _looks(self) -> bool:
        """True if a step needs the gradients' norm, for which the host waits."""
        return self.clip is not None or self.precision.scale is not None or self.check

    def _usable(self) -> None:
        self._sound()
        if self._closed:
            raise RuntimeError("this engine can no longer be used: the engine was closed")

    def _sound(self) -> None:
        if self._over is not None:
            raise RuntimeError(f"this engine can no longer be used: {self._over}")

    def _forget(self) -> None:
        self._micros.forget()
        self._edits.forget()
        self.gradients.forget()
        for _, part in self.shards.parts():
            part.grad = None


engine = Engine  # `zero.engine(model, optimizer, stage=…, mesh=…)`
