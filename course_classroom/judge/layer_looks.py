"""Looks at a layer's output, gradients, messages, memory and steps, compared with one process.

These looks at an answer that a `Layer` declares have the same order in every exercise. An exercise
adds the values of its wrong ideas and its budget. From lesson 04 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from course_classroom.judge import layers, looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.layers import Layer, Seen, Sizes, Use
from course_classroom.judge.looking import THREE, alike, all_near, counted
from course_classroom.judge.words import Page, Words
from course_classroom.ranks import agreement

SINGLE = 1e-4  # relative, of a layer in float32
_BROKEN = ("raised", "deadlock", "not called by all", "left out by an empty rank")
_AT_ONCE = "with {count} layers whose backward passes begin after all forward passes"
_GIVEN = "x, a weight or a list that it received"
SAYS = Page(__file__, "layer_looks")


Gives = Callable[[Seen, str], Sequence[Tensor]]
Wirings = Sequence[tuple[str, Callable[[Mapping, Mapping], bool]]]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The messages allowed in each direction, and the bytes that a rank may send in it."""

    forward: Sequence[Mapping[str, int]]
    backward: Sequence[Mapping[str, int]]
    # Of a rank, given its backward messages: bytes in the forward and backward pass.
    most: Callable[[Seen, int, Mapping[str, int]], tuple[float, float]]
    beside: Mapping[str, int] = field(default_factory=dict)  # maximum number of these backward
    wirings: Wirings = ()  # entries in the exercise's words, by the messages of both passes
    more: str = "more bytes"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """An exercise whose answer is a layer over ranks; `says` has an entry for each wrong idea."""

    module: str  # the module in which the ranks find LAYER
    layer: Layer
    says: Words
    owed: str  # the expected result of every rank, in words
    cases: Callable[[int], Sequence[tuple[list[int], Sizes]]]
    uses: Sequence[Use]
    outputs: Callable[[Seen], Mapping[str, Sequence[Tensor]] | Iterable]
    # For each idea its entry, the gradients that it changes ("" for any), and its values for one.
    gradients: Sequence[tuple[str, str, Gives]]
    budget: Budget | Callable[[Seen], None]
    means: Mapping[str, str] = field(default_factory=dict)  # names of dims to average over
    # The exercise's own names for findings of the frame, such as {"wrong output": "wrong loss"}.
    named: Mapping[str, str] = field(default_factory=dict)
    outside: str = "the check's call"  # activity of a rank that is in none of the answer's lines
    whole: str = ""  # the entry for a result that contains all ranks' parts
    kept: str = ""  # the entry for more than one live tensor as large as the full x

    def judge(self, answer: Answer, judge: Judge) -> None:
        """Try the answer; raise the Finding that explains the error best."""
        judge.take(answer, layers.__name__, self.module)
        seed = looking.fresh_seed()
        looks = looking.Looks(
            returned=lambda one: refuse_none(one.reports, one.when, self.owed),
            shape=self._shape,
            unchanged=lambda one: looking.refuse_changed(one, _GIVEN),
            value=self._output,
            gradients=self._gradients,
            traffic=self._traffic,
            memory=self._memory,
            later_steps=self._later,
        )
        tried = (self._tried(answer, judge, *case, seed) for case in self.cases(seed))
        looks.at(answer, tried, first_alone=True)
        self._at_once(answer, judge, seed)

    def _tried(self, answer: Answer, judge: Judge, members: list, sizes: Sizes, seed: int) -> Seen:
        when = f"{on(members)} with {_in_words(sizes)}"
        how = {"members": members, "when": when, "outside": self.outside}
        how["empty"] = self.layer.empty(sizes, len(members))
        reports = judge.trial(answer, layers.run, self.module, dict(sizes), seed, **how)
        return Seen(self.layer, sizes, seed, reports, when)

    def _say(self, entry: str, **about: object) -> Finding:
        entry = self.named.get(entry, entry)
        return (self.says if entry in self.says.entries else SAYS)(entry, **about)

    def _shape(self, one: Seen) -> None:
        whole = list(one.steps[0][0].shape)
        for rank, (report, right) in enumerate(zip(one.reports, one.outputs(), strict=True)):
            if report["out"] is None:
                if self.whole and report["shape"] == whole != list(right.shape):
                    raise self._say(self.whole, rank=rank, **one.about())
                raise self._wrong_shape(one, rank, "float64")

    def _output(self, one: Seen) -> None:
        outs, right = [report["out"] for report in one.reports], one.outputs()
        if all_near(outs, right):
            return
        known = looking.ideas(self.says, self.outputs(one), **one.about())
        looking.refuse_idea(outs, known, one.when)
        fine = [rank for rank in one.ranks if alike(outs[rank], right[rank])]
        if fine and "not on every rank" in self.says.entries:
            raise self.says("not on every rank", ranks=agreement.ranks(fine), when=one.when)
        looking.refuse_general(outs, right, one.when, sizes=self._sizes(one), what="output")
        raise self._say("wrong output", when=one.when)

    def _sizes(self, one: Seen) -> dict[str, int]:
        return {
            what: torch.Size([one.sizes[dim] for dim in dims.split()]).numel()
            for what, dims in self.means.items()
        }

    def _gradients(self, one: Seen) -> None:
        for rank, report in enumerate(one.reports):
            if report["grads"] is None:
                raise self._say("no gradient", rank=rank, when=one.when)
        names = self.layer.trained
        wrong = [name for name in names if not all_near(one.seen(name), one.gradients(name))]
        if not wrong:
            return
        listed = agreement.listed(wrong)
        head = f"The output is correct, but the gradient of {listed} is wrong ({one.when}). "
        for entry, about, gives in self.gradients:
            meant = about.split() if about else wrong
            if not set(meant) <= set(wrong):
                continue
            name, text = self.says.of(entry, **one.about())
            known = [looking.Idea(name, text, gives(one, tensor)) for tensor in meant]
            if all(map(looking.explains, known, map(one.seen, meant))):
                raise Finding(name, head + text)
        for name in wrong:
            seen, what = one.seen(name), f"gradient of {name}"
            sizes = self._sizes(one)
            looking.refuse_general(seen, one.gradients(name), one.when, sizes=sizes, what=what)
        own = f"wrong gradient of {wrong[0]}"
        raise self._headed(head, own if own in self.named else "wrong gradient")

    def _traffic(self, one: Seen) -> None:
        if not isinstance(self.budget, Budget):
            return self.budget(one)
        for rank, report in enumerate(one.reports):
            forward, backward = report["forward"], report["backward"]
            there, back = dict(forward["ops"]), dict(backward["ops"])
            over = [op for op, most in self.budget.beside.items() if back.pop(op, 0) > most]
            head = (
                f"Values and gradients are correct. Rank {rank} sends {counted(forward['ops'])} "
                f"in the forward pass and {counted(backward['ops'])} in the backward pass "
                f"({one.when}). "
            )
            if there not in self.budget.forward or back not in self.budget.backward:
                fits = (entry for entry, sent in self.budget.wirings if sent(there, back))
                raise self._headed(head, next(fits, "over budget"))
            most = self.budget.most(one, rank, back)
            sent = (forward["bytes"], backward["bytes"])
            if over or sent[0] > most[0] or sent[1] > most[1]:
                about = dict(zip(("forward", "backward"), sent, strict=True))
                about |= {"most_forward": most[0], "most_backward": most[1], **one.about()}
                raise self._headed(head, self.budget.more, **about)

    def _headed(self, head: str, entry: str, **about: object) -> Finding:
        found = self._say(entry, **about)
        return Finding(found.name, head + found.text)

    def _memory(self, one: Seen) -> None:
        for rank, report in enumerate(one.reports):
            if self.kept and report["wide"] > 1:
                raise self._say(self.kept, rank=rank, wide=report["wide"], **one.about())

    def _later(self, one: Seen) -> None:
        for step in range(layers.STEPS):
            if any(len(report["steps"]) <= step for report in one.reports):
                raise looking.another_step(one, 0, step)
            outs = [report["steps"][step]["out"] for report in one.reports]
            found = [outs, *(one.seen(name, step) for name in self.layer.trained)]
            right = [one.outputs(step)]
            right += [one.gradients(name, step) for name in self.layer.trained]
            for rank in one.ranks:
                if not all_near([f[rank] for f in found], [r[rank] for r in right]):
                    raise looking.another_step(one, rank, step)

    def _at_once(self, answer: Answer, judge: Judge, seed: int) -> None:
        """Try several layers at once with other sizes and dtypes, one in a one-rank group."""
        when = _AT_ONCE.format(count=len(self.uses))
        given = (self.module, [tuple(use) for use in self.uses], seed)
        try:
            reports = judge.trial(answer, layers.at_once, *given, members=THREE, when=when)
        except Finding as finding:
            if finding.name not in _BROKEN:
                raise
            raise self._say("several calls at once", what=finding.text) from None
        for number, (sizes, dtype, alone) in enumerate(self.uses):
            mine = [report[number] for report in reports]
            for group in [[report] for report in mine] if alone else [mine]:
                one = Seen(self.layer, sizes, seed + number, group, when)
                self._dtype(one, dtype)
                if not _first_step_right(one, looking.TOLERANCE if dtype == "float64" else SINGLE):
                    what = f"The {dtype} layer with {_in_words(sizes)} is wrong."
                    raise self._say("several calls at once", what=what)

    def _dtype(self, one: Seen, dtype: str) -> None:
        for rank, report in enumerate(one.reports):
            if report["dtype"] not in (None, dtype):
                raise self._wrong_shape(one, rank, dtype)

    def _wrong_shape(self, one: Seen, rank: int, dtype: str) -> Finding:
        got, shape = looking.came_back(one.reports[rank]), list(one.outputs()[rank].shape)
        about = {"rank": rank, "got": got, "shape": shape, "dtype": dtype}
        return self._say("wrong shape", **about, when=one.when)


def _in_words(sizes: Sizes) -> str:
    return ", ".join(f"{dim} = {size}" for dim, size in sizes.items())


def _first_step_right(one: Seen, tolerance: float) -> bool:
    found = [[report["out"] for report in one.reports], *map(one.seen, one.layer.trained)]
    right = [one.outputs(), *map(one.gradients, one.layer.trained)]
    pairs = zip(chain(*found), chain(*right), strict=True)
    return all(alike(seen, wanted, tolerance) for seen, wanted in pairs)
