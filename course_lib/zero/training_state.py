"""What an engine gives to a checkpoint and takes from it: its own tensors, and its counters.

Each rank gives its own part. The model's buffers, and below stage 3 its frozen parameters, are in
no part: they are in the `state_dict`. Lesson 14 writes files of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from course_lib.zero.own_states import Into, Slot, put, slots_of, tensors_of
from course_lib.zero.shards import Read

PLAIN = (bool, int, float, str, type(None))
NOT_OPTIONS = {"params", "param_names"}


class TrainingState:
    """The training state of what has shards, a home, an optimizer and a precision."""

    def own_slots(self) -> dict[str, Slot]:
        """Names, dtypes and shapes of what this rank updates and of the optimizer's states of it:
        `blocks.0.mlp.up.weight[0:128]:value`, `…:exp_avg`, `…:step`."""
        self._usable()
        return slots_of(self.shards, self.home, self.optimizer)

    def own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) in the order of `own_slots`, between two steps; each tensor is valid until
        the next is asked for. What was written to the model since the last step is in them."""
        self._between_steps()
        return tensors_of(self.shards, self.home, self.optimizer)

    def put_own(
        self,
        slots: Mapping[str, Slot],
        read: Callable[[str], Tensor],
        others: Read | None = None,
        into: Into | None = None,
    ) -> None:
        """Put back what `own_slots` named and `own_tensors` gave; all ranks call it, before the
        first step or later. Where names or shapes do not fit on a rank, all raise ValueError, and
        nothing was put back; gradients since the last step are dropped. At stages 1 and 2 the other
        ranks' elements are gathered, or, with `others(name, start, stop, place)`, read.
        `into(name, place)` may read to where a tensor lies already, and says whether it did."""
        self.zero_grad()
        try:
            others = others if self.stage in (1, 2) else None
            put(self.shards, self.home, self.optimizer, self.groups, slots, read, others, into)
        except OSError as error:
            self._over = str(error)
            raise

    def counters(self) -> dict:
        """What else goes on after a checkpoint, as JSON has it: the steps that were skipped, the
        loss scale, and the options of the optimizer's groups, which a schedule may have changed."""
        scale = self.precision.scale
        groups = self.optimizer.param_groups
        return {
            "skipped": self.skipped,
            "scale": scale and {"value": scale.value, "good": scale.good, "left": scale.left},
            "groups": [_options(group) for group in groups],
        }

    def set_counters(self, counters: Mapping) -> None:
        """Go on from another engine's counters."""
        scale, groups = self.precision.scale, self.optimizer.param_groups
        if (scale is None) != (counters["scale"] is None):
            there, here = ("with", "without") if scale is None else ("without", "with")
            raise ValueError(
                f"set_counters: they are of a training {there} a loss scale, and this engine is "
                f"one {here}; make it with the same precision="
            )
        if len(counters["groups"]) != len(groups):
            raise ValueError(
                f"set_counters: the optimizer had {len(counters['groups'])} groups, and this one "
                f"has {len(groups)}; make it of the same groups"
            )
        self.skipped = counters["skipped"]
        for name, value in (counters["scale"] or {}).items():
            setattr(scale, name, value)
        for group, options in zip(groups, counters["groups"], strict=True):
            for name, value in options.items():
                if isinstance(group.get(name), Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = tuple(value) if isinstance(value, list) else value

    def _between_steps(self) -> None:
        self._usable()
        if self._micros.begun:
            raise RuntimeError(
                f"a step has begun, {self._micros.begun} of {self.accumulate} micro-batches, whose "
                "gradients no checkpoint has: save after engine.step(), or drop them by "
                "engine.zero_grad()"
            )


def _options(group: Mapping) -> dict:
    """A group's options that are numbers, words, or a few of them."""
    options = {}
    for name, value in group.items():
        if name in NOT_OPTIONS:
            continue
        if isinstance(value, Tensor) and value.numel() == 1:
            options[name] = value.item()
        elif isinstance(value, PLAIN):
            options[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(x, PLAIN) for x in value):
            options[name] = list(value)
    return options
