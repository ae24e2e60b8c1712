"""A step of a pipeline: each rank follows its schedule and exchanges activations and gradients.

Every send is asynchronous, and its handle is waited for at the end. With blocking sends in 1F1B,
two neighbours would each wait for the other to receive. The memory of a stage is counted from the
tensors that autograd saves. Appendix E4.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.collectives import all_reduce, broadcast, labelled, recv, send
from course_lib.collectives.call import Group, size_and_rank
from course_lib.collectives.transport import Handle
from course_lib.extras.axes.schedule import BACKWARD, FORWARD, UNITS, Step, Timed, named
from course_lib.extras.axes.stages import Stage, cut_into_stages
from course_lib.gpt import GPT
from course_lib.meta import memory_key
from course_lib.step.losses import valid


class SavedTensor:
    """A tensor that an autograd graph saved; it is freed when the graph releases it."""

    def __init__(self, tensor: Tensor, micro: int):
        self.tensor, self.micro = tensor, micro


class SavedTensors:
    """A record of the tensors that autograd saved in `of(micro)` and still holds."""

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self._parameters = {memory_key(p.untyped_storage()) for p in parameters}
        self._saved: weakref.WeakSet[SavedTensor] = weakref.WeakSet()
        self.most_bytes = 0
        self.most_micros = 0

    @contextmanager
    def of(self, micro: int) -> Iterator[None]:
        """Count the tensors saved by this micro-batch's forward pass, which runs in the body."""

        def pack(tensor: Tensor) -> SavedTensor:
            saved = SavedTensor(tensor, micro)
            if memory_key(tensor.untyped_storage()) not in self._parameters:
                self._saved.add(saved)
            return saved

        with saved_tensors_hooks(pack, lambda saved: saved.tensor):
            yield
        self.most_bytes = max(self.most_bytes, self.bytes())
        self.most_micros = max(self.most_micros, len(self.micros()))

    def micros(self) -> set[int]:
        """Return the micro-batches whose tensors are still held."""
        return {saved.micro for saved in self._saved}

    def bytes(self) -> int:
        """Return the bytes of the distinct storages that are held now."""
        storages = (saved.tensor.untyped_storage() for saved in self._saved)
        return sum({memory_key(storage): storage.nbytes() for storage in storages}.values())


class PipelineStep(NamedTuple):
    """The result of a step of a pipeline on this rank."""

    loss: float  # the mean over all tokens, on every rank
    walked: list[Timed]  # this rank's steps, in units of work that messages carry
    kept: SavedTensors


class Pipeline:
    """This rank's stage of a GPT, over the ranks of `group` in their order.

    `back` carries the gradients. On NCCL it is a second group of the same ranks, so that the two
    directions do not wait for each other; on gloo it can be `group`. `ends` is the group of the
    first and the last rank, needed for a tied embedding table (`group` if it has two ranks).
    """

    def __init__(
        self, model: GPT, group: Group, *, back: Group | None = None, ends: Group | None = None
    ):
        self.stages, self.index = size_and_rank(group)
        self.group, self.back = group, group if back is None else back
        self.stage: Stage = cut_into_stages(model, self.stages, self.index)
        self.ends = group if self.stages == 2 and ends is None else ends
        if self.stage.tied and self.ends is None:
            members = dist.get_process_group_ranks(group)
            raise ValueError(
                "the embedding is tied, so its gradient is a sum over the first and the last "
                f"stage. Pass ends=, the group of the ranks {[members[0], members[-1]]}, which "
                "every rank creates with ranks.new_group, or take a model with tied=False"
            )

    def step(
        self, ids: Tensor, targets: Tensor, *, micros: int, schedule: str = "1f1b"
    ) -> PipelineStep:
        """Accumulate gradients of the mean loss of a batch (b, s), split into `micros` parts.

        All ranks pass the same batch. The first rank reads its ids and the last rank its targets,
        of which -100 is ignored.
        """
        if not 1 <= micros <= len(ids):
            raise ValueError(
                f"micros={micros} for {len(ids)} rows: each micro-batch needs at least one row"
            )
        table = self.stage.table()
        earlier = None
        if table is not None:  # gradients of earlier steps are summed already
            earlier, table.grad = table.grad, None
        walk = _Walk(self, ids, targets, micros)
        for step in named(schedule)(self.stages, micros, self.index):
            walk.take(step)
        for handle in walk.sent:
            handle.wait()
        if table is not None:
            summed = all_reduce(table.grad, self.ends, donated=True)
            table.grad = summed if earlier is None else earlier + summed
        with labelled("scalars"):
            loss = broadcast(walk.loss, self.group, src=self.stages - 1)
        return PipelineStep(loss.item(), walk.walked, walk.kept)


class _Walk:
    """State of one step: the tensors kept between forward and backward passes, and the clock."""

    def __init__(self, pipeline: Pipeline, ids: Tensor, targets: Tensor, micros: int):
        self.pipeline, self.stage = pipeline, pipeline.stage
        weight = next(pipeline.stage.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.ids = [piece.clone() for piece in ids.tensor_split(micros)]
        self.targets = [piece.clone() for piece in targets.tensor_split(micros)]
        self.tokens = max(1, valid(targets))
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.kept = SavedTensors(pipeline.stage.parameters())
        self.ends: dict[int, tuple[Tensor, Tensor]] = {}  # micro-batch: input, output
        self.sent: list[Handle] = []
        self.walked: list[Timed] = []

    def take(self, step: Step) -> None:
        came = self.forward(step.micro) if step.kind == FORWARD else self.backward(step.micro)
        start = max(came, self.walked[-1].end if self.walked else 0)
        self.walked.append(Timed(step, start, start + UNITS[step.kind]))
        self.clock(step)

    def forward(self, k: int) -> int:
        """Run a micro-batch through this stage; return the time unit when its input was ready."""
        p, came, x = self.pipeline, 0, self.ids[k]
        if not self.stage.first:
            shape = (*x.shape, self.stage.config.hidden)  # (b, s, h)
            x, came = self.receive(shape, p.group, p.index - 1)
            x.requires_grad_()
        with self.kept.of(k):
            y = self.stage(x)
            if self.stage.last:
                y = self.stage.loss_sum(y, self.targets[k]) / self.tokens
        if self.stage.last:
            self.loss += y.detach()
        else:
            self.sent.append(send(y.detach(), p.group, p.index + 1, async_op=True))
        self.ends[k] = x, y
        return came

    def backward(self, k: int) -> int:
        p, came, gradient = self.pipeline, 0, None
        x, y = self.ends.pop(k)
        if not self.stage.last:
            gradient, came = self.receive(y.shape, p.back, p.index + 1)
        y.backward(gradient)
        if not self.stage.first:
            self.sent.append(send(x.grad, p.back, p.index - 1, async_op=True))
        return came

    def receive(self, shape: Sequence[int], group: Group, source: int) -> tuple[Tensor, int]:
        x = recv(shape, group, source, dtype=self.dtype, device=self.device)
        with labelled("clock"):
            came = recv((1,), group, source, dtype=torch.int64, device=self.device)
        return x, int(came)

    def clock(self, step: Step) -> None:
        """Send this rank's clock after each message, which measures order, not seconds."""
        p = self.pipeline
        group, to, none = p.group, p.index + 1, self.stage.last
        if step.kind == BACKWARD:
            group, to, none = p.back, p.index - 1, self.stage.first
        if not none:
            now = torch.tensor([self.walked[-1].end], device=self.device)
            with labelled("clock"):
                self.sent.append(send(now, group, to, async_op=True))
