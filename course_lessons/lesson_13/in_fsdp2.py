"""`in_fsdp2` of lesson 13: a ZeRO config said with the arguments of `fully_shard`, and then run.

The judge's ranks shard a small model under them and under the reference's; the ledger says whether
the parameters are gathered again and in which types things travel.
"""

from __future__ import annotations

from typing import NamedTuple

from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, fresh_seed
from course_classroom.judge.words import Page
from course_lessons.lesson_13 import fsdp_trial as trial
from course_lessons.lesson_13.words import AWAY, REDUCED, Words, drawn, words
from course_lib.peers.deepspeed_config.auto import ZERO

SAYS = Page(__file__, "in_fsdp2")

FEW = 4  # configs on two ranks: stages and types, after all of them on three
PARAM, STATES = AWAY
ABOUT = {"fp16", "bf16", REDUCED, "stage", *AWAY}  # what the words are about


class Note(NamedTuple):
    """What came of one config on one rank, beside the right words for it, if there are any."""

    where: str
    config: dict
    said: Words | None
    seen: dict

    @property
    def section(self) -> dict:
        return self.config.get(ZERO, {})


def judge_fsdp(answer: Answer, judge: Judge) -> None:
    """All configs on three ranks, then a few on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__, "torch.distributed.fsdp")
    for members in (THREE, TWO):
        configs = drawn(fresh_seed())[: None if members == THREE else FEW]
        reports = judge.trial(answer, trial.run, configs, members=members, when=on(members))
        notes = [
            Note(f"config {k}, rank {rank}, {on(members)}", config, words(config), seen)
            for rank, report in enumerate(reports)
            for k, (config, seen) in enumerate(zip(configs, report, strict=True), 1)
        ]
        known = [note for note in notes if note.said]
        looks = {refusals: notes, form: notes, one_step: known, offload: known, names: known}
        for look, some in looks.items():
            for note in some:
                SAYS.refuse(look(note), **about(note))


def about(note: Note) -> dict[str, object]:
    """What fills in the words of any finding."""
    section = {name: value for name, value in note.section.items() if name in ABOUT}
    beside = {name: value for name, value in note.config.items() if name in ABOUT}
    missing, extra = listed(note)
    return {
        **note.seen,
        "where": note.where,
        "config": f"The config: {beside | {ZERO: section}}.",
        "told": _told(note),
        "missing": [*missing, ""][0],
        "extra": [*extra, ""][0],
    }


def _told(note: Note) -> str:
    """What one step has shown."""
    mine = note.seen.get("mine")
    if not mine:
        return ""
    gathered, reduced = " and ".join(mine["gathered"]), " and ".join(mine["reduced"])
    return (
        f"It was run ({note.where}, stage {note.section['stage']}): parameters gathered in "
        f"{gathered}, {mine['again']} all-gathers in the backward pass, {mine['held']} bytes of "
        f"parameters held before it, gradients reduced in {reduced}."
    )


def refusals(note: Note) -> dict[str, object]:
    """What FSDP2 has nothing like is refused, and nothing else."""
    refused = note.seen["kind"] == "ValueError"
    wanted = not (refused or note.said)
    return {
        "refused though it can be said": refused and note.said,
        "another error": wanted and note.seen["text"],
        "sharded what was whole": wanted and not note.section.get("stage"),
        "files forgotten": wanted,
    }


def form(note: Note) -> dict[str, object]:
    kind, came = note.seen["kind"], note.seen["kind"] != "ValueError"
    return {
        "nothing returned": kind == "NoneType",
        "not a pair #1": came and kind != "pair",
        "no argument for it": note.seen["strange"],
        "fully_shard refuses": came and note.seen["text"],
        "not a pair #2": came and note.seen["unsaid"] is None,
        "input changed": note.seen["changed"],
    }


def one_step(note: Note) -> dict[str, object]:
    """What the model did under the arguments, beside what it does under the right ones."""
    mine, right, said = note.seen["mine"], note.seen["right"], note.said
    off = {key for key in right if mine[key] != right[key]}
    typed, freed = off & {"gathered", "output"}, off & {"again", "held"}
    given, narrow = REDUCED in note.config, mine["gathered"] == ["bfloat16"]
    narrow = narrow and "bf16" not in note.config
    there_and_off = any(note.config.get(name) == {"enabled": False} for name in ("fp16", "bf16"))
    return {
        "the reduction's type for all": typed and not said.parameters and given,
        "another precision #2": typed and not said.parameters,
        "another precision #3": typed and narrow,
        "switched off": typed and there_and_off and mine["gathered"] != ["float32"],
        "another precision #1": typed,
        "left to the default": freed and note.seen["default"],
        "kept after the forward": freed and said.reshard and mine["held"] > right["held"],
        "freed after the forward": freed,
        "communication type lost": off and given,
        "reduced in another type": off,
    }


def offload(note: Note) -> dict[str, object]:
    pinned, wanted = note.seen["pinned"], note.said.pinned
    alone = pinned is not None and wanted is None
    host = [name for name in AWAY if note.section.get(name, {}).get("device") == "cpu"]
    return {
        "parameters moved as well": alone and host == [STATES],
        "states moved as well": alone and host == [PARAM],
        "none is no offload #1": alone and note.said.off,
        "offloaded by itself": alone,
        "left on the device": wanted is not None and pinned is None,
        "pinned memory": pinned != wanted,
    }


def listed(note: Note) -> tuple[list[str], list[str]]:
    """The keys that are lost in silence, and those that are in the list and should not be."""
    right, mine = note.said.unsaid if note.said else set(), set(note.seen["unsaid"] or ())
    return sorted(right - mine), sorted(mine - right)


def names(note: Note) -> dict[str, object]:
    missing, extra = listed(note)
    return {
        "lost in silence": missing,
        "none is no offload #2": note.said.off & set(extra),
        "said after all": extra and extra[0] in note.section,
        "not in the section": extra,
    }


IN_FSDP2 = Exercise(judge=judge_fsdp, **SAYS.about)
