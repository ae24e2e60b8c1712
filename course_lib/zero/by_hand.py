"""ZeRO by hand: stages 1, 2 and 3 over two collectives, reduced to the idea.

Parameters are concatenated in a flat buffer: one at stage 1, one per bucket at stage 2, one per
unit at stage 3. A rank owns one piece of each buffer, and its optimizer has only these pieces. All
parameters have one dtype, and each gets a gradient in every backward pass on every rank.

The engine does the same, but overlaps messages with the backward pass, averages over tokens, and
adds 16 bits, offload and checks. Lessons 09, 10 and 11 derive stages 1, 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from course_lib.collectives import all_gather, reduce_scatter
from course_lib.collectives.call import Group, size_and_rank
from course_lib.layout import flat

REMEDY = "ZeRO by hand needs one in every backward; zero.engine allows missing gradients"
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class FlatParameters:
    """Some parameters in one flat buffer, and the piece of it that this rank updates."""

    def __init__(self, parameters: Iterable[nn.Parameter], group: Group, *, apart: bool = False):
        self.parameters, self.group = list(parameters), group
        self.n, rank = size_and_rank(group)
        dtypes = {p.dtype for p in self.parameters}
        if len(dtypes) > 1:
            raise ValueError(f"one buffer cannot hold {dtypes}: ZeRO by hand takes one dtype")
        total = sum(p.numel() for p in self.parameters)
        self.cut = flat(total, self.n)
        self.whole = self._end_to_end([p.detach() for p in self.parameters])
        for p, place in zip(self.parameters, self._places(self.whole), strict=True):
            p.data = place  # now the parameter is a view of the buffer
        piece = self.whole[rank * self.cut.shard : (rank + 1) * self.cut.shard]
        self.own = nn.Parameter(piece.clone() if apart else piece)

    def reduce(self) -> None:
        """Add the ranks' mean to the gradient of this rank's piece; free the full gradients."""
        missing = [tuple(p.shape) for p in self.parameters if p.grad is None]
        if missing:
            raise RuntimeError(f"parameters {missing} have no gradient: {REMEDY}")
        gradients = self._end_to_end([p.grad for p in self.parameters])
        for p in self.parameters:
            p.grad = None
        piece = reduce_scatter(gradients, self.group) / self.n
        self.own.grad = piece if self.own.grad is None else self.own.grad + piece

    def gather(self) -> None:
        """Fill the buffer, and therefore the parameters, with every rank's piece."""
        all_gather(self.own.detach().clone(), self.group, into=self.whole)

    def _end_to_end(self, tensors: Sequence[Tensor]) -> Tensor:
        padding = tensors[0].new_zeros(sum(self.cut.padding))
        return torch.cat([*(t.flatten() for t in tensors), padding])

    def _places(self, buffer: Tensor) -> list[Tensor]:
        parts = buffer[: self.cut.total].split([p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


class Stage1:
    """Sharded optimizer states: a step first reduce-scatters the full gradients, once."""

    def __init__(self, model: nn.Module, optimizer: MakeOptimizer, group: Group):
        self.flat = FlatParameters(model.parameters(), group)
        self.optimizer = optimizer([self.flat.own])

    def step(self) -> None:
        """Update this rank's own piece, then gather all pieces."""
        self.flat.reduce()
        update(self.optimizer, [self.flat])
        self.flat.gather()


class Stage2:
    """Sharded gradients as well: a bucket is sent in the backward pass as soon as its last gradient
    has arrived, and its full gradients are freed."""

    def __init__(
        self, model: nn.Module, optimizer: MakeOptimizer, group: Group, most: int = 1 << 20
    ):
        self.buckets = [FlatParameters(some, group) for some in buckets(model.parameters(), most)]
        for bucket in self.buckets:
            when_all_arrived(bucket.parameters, bucket.reduce)
        self.optimizer = optimizer([bucket.own for bucket in self.buckets])

    def step(self) -> None:
        update(self.optimizer, self.buckets)
        for bucket in self.buckets:
            bucket.gather()


class Stage3:
    """Sharded parameters as well: a unit is gathered for its forward pass and for its backward
    pass, and freed after each.

    `units` are modules that run in sequence and return a tensor, such as a model's blocks. All
    other parameters form one more unit, around the model's own forward and backward pass.
    """

    def __init__(
        self, model: nn.Module, optimizer: MakeOptimizer, group: Group, units: Sequence[nn.Module]
    ):
        inside = {p for unit in units for p in unit.parameters()}
        outside = [p for p in model.parameters() if p not in inside]
        self.units = [self._cut(unit, unit.parameters(), group) for unit in units]
        self.units += [self._cut(model, outside, group)] if outside else []
        self.optimizer = optimizer([unit.own for unit in self.units])

    def _cut(
        self, module: nn.Module, parameters: Iterable[nn.Parameter], group: Group
    ) -> FlatParameters:
        unit = FlatParameters(parameters, group, apart=True)
        # Its bytes are freed and allocated again, but the storage and all its views stay.
        memory = unit.whole.untyped_storage()
        size = memory.nbytes()

        def gather(*_: object) -> None:
            if not memory.nbytes():
                memory.resize_(size)
                unit.gather()

        def after_forward(_module: nn.Module, _inputs: tuple, out: Tensor) -> None:
            memory.resize_(0)
            if out.requires_grad:
                out.register_hook(gather)  # the backward pass reaches this unit here

        def after_backward() -> None:
            unit.reduce()
            memory.resize_(0)

        module.register_forward_pre_hook(gather)
        module.register_forward_hook(after_forward)
        when_all_arrived(unit.parameters, after_backward)
        memory.resize_(0)
        return unit

    def step(self) -> None:
        """Update this rank's own piece without a message; the next forward pass gathers."""
        update(self.optimizer, self.units)


def update(optimizer: torch.optim.Optimizer, parts: Sequence[FlatParameters]) -> None:
    """Run the optimizer on this rank's pieces, then drop their gradients."""
    for part in parts:
        # No gradient: some are missing, so it was not sent. Left over: they came after it was sent.
        if part.own.grad is None or any(p.grad is not None for p in part.parameters):
            shapes = [tuple(p.shape) for p in part.parameters]
            raise RuntimeError(f"not all of the parameters {shapes} have a gradient: {REMEDY}")
    optimizer.step()
    optimizer.zero_grad()


def buckets(parameters: Iterable[nn.Parameter], most: int) -> list[list[nn.Parameter]]:
    """Group parameters from last to first, as gradients arrive, into lists of at most `most`
    elements; a larger parameter has a separate list."""
    lists: list[list[nn.Parameter]] = [[]]
    for p in reversed(list(parameters)):
        if lists[-1] and sum(q.numel() for q in [*lists[-1], p]) > most:
            lists.append([])
        lists[-1].append(p)
    return lists


def when_all_arrived(parameters: Sequence[nn.Parameter], act: Callable[[], None]) -> None:
    """Call `act` each time that all of these parameters have received a new gradient."""
    arrived: set[nn.Parameter] = set()

    def note(parameter: nn.Parameter) -> None:
        arrived.add(parameter)
        if len(arrived) == len(parameters):
            arrived.clear()
            act()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(note)
