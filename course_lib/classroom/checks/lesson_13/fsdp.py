"""`in_fsdp2` of lesson 13: a ZeRO config said with the arguments of `fully_shard`, and then run.

The judge's ranks shard a small model under them and under the reference's; the ledger says whether
the parameters are gathered again and in which types things travel.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_13 import fsdp_trial as trial
from course_lib.classroom.checks.lesson_13.words import DTYPES, ZERO, NoWord, Words, drawn, words
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_13/in_fsdp2")

FEW = 4  # configs on two ranks: stages and types, after all of them on three


class Trial(NamedTuple):
    reports: list[dict]
    configs: list[dict]
    when: str

    def each(self) -> list[tuple[str, dict, dict]]:
        """Of each rank and config: where it is, the config, and what came of it."""
        return [
            (f"config {number}, rank {rank}, {self.when}", config, seen)
            for rank, report in enumerate(self.reports)
            for number, (config, seen) in enumerate(
                zip(self.configs, report["configs"], strict=True), 1
            )
        ]


def judge_fsdp(answer: Answer, judge: Judge) -> None:
    judge.take(answer, trial.__name__, "torch.distributed.fsdp")

    def tried(members: list[int]) -> Trial:
        configs, when = drawn(fresh_seed())[: None if members == THREE else FEW], on(members)
        reports = judge.trial(answer, trial.run, configs, members=members, when=when)
        return Trial(reports, configs, when)

    LOOKS.at(answer, (tried(members) for members in (THREE, TWO)))


def reference(config: dict) -> Words | None:
    """The right words for a config; None where there are none."""
    try:
        return words(config)
    except NoWord:
        return None


def short(config: dict) -> str:
    """What of a config the words are about, as far as a message needs it."""
    section = {name: value for name, value in config.get(ZERO, {}).items() if name in ABOUT}
    beside = {name: value for name, value in config.items() if name in ABOUT}
    return f"The config: {beside | {ZERO: section}}."


ABOUT = ("fp16", "bf16", "communication_data_type", "stage", "offload_param", "offload_optimizer")


def _look_at_refusals(one: Trial) -> None:
    """What FSDP2 has nothing like is refused, and nothing else."""
    for where, config, seen in one.each():
        refused, known = seen["kind"] == trial.REFUSED, reference(config) is not None
        wanted = not (refused or known)
        looks = {
            "refused though it can be said": refused and known,
            "another error": wanted and seen["kind"] == trial.STOPPED,
            "sharded what was whole": wanted and not config.get(ZERO, {}).get("stage"),
            "files forgotten": wanted,
        }
        SAYS.refuse(looks, where=where, text=seen["text"], config=short(config))


def _look_at_shape(one: Trial) -> None:
    for where, _, seen in one.each():
        if seen["kind"] == trial.REFUSED:
            continue
        strange = sorted(set(seen["given"]) - set(trial.KNOWN))
        looks = {
            "nothing returned": seen["kind"] == "NoneType",
            "not a pair #1": seen["kind"] != "pair",
            "no argument for it": strange,
            "fully_shard refuses": seen["text"],
            "not a pair #2": seen["unsaid"] is None,
        }
        about = {"kind": seen["kind"], "text": seen["text"], "known": ", ".join(trial.KNOWN)}
        SAYS.refuse(looks, where=where, strange=strange[0] if strange else "", **about)


def _look_at_inputs(one: Trial) -> None:
    for where, _, seen in one.each():
        SAYS.refuse({"input changed": seen["changed"]}, where=where)


def _measured(one: Trial) -> list[tuple[str, dict, dict, Words]]:
    known = [(where, config, seen, reference(config)) for where, config, seen in one.each()]
    return [entry for entry in known if entry[3] is not None]


def _look_at_run(one: Trial) -> None:
    """What the model did under the arguments, beside what it does under the right ones."""
    for where, config, seen, said in _measured(one):
        mine, right = seen["measured"], seen["right"]
        differs = {key: mine[key] != right[key] for key in right}
        communication = "communication_data_type" in config
        if differs["gathered"] or differs["output"]:
            off = [
                name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled") is False
            ]
            narrow = mine["gathered"] == [DTYPES["bf16"]]
            looks = {
                "the reduction's type for all": said.parameters is None and communication,
                "another precision #2": said.parameters is None,
                "another precision #3": narrow and "bf16" not in config,
                "switched off": off and mine["gathered"] != ["float32"],
                "another precision #1": True,
            }
            told = f"gathers {' and '.join(mine['gathered'])} ({where}). {short(config)}"
            SAYS.refuse(looks, told=f"It was run, and {told}")
        if differs["again"] or differs["held"]:
            default = seen["given"].get("reshard_after_forward") is None
            looks = {
                "left to the default": default,
                "kept after the forward": said.reshard and mine["held"] > right["held"],
                "freed after the forward": True,
            }
            told = (
                f"It was run: {mine['again']} all-gathers in the backward, {mine['held']} bytes of "
                f"parameters held before it ({where}, stage {config[ZERO]['stage']})."
            )
            SAYS.refuse(looks, told=told)
        if differs["reduced"]:
            told = (
                f"It was run, and reduces gradients in {' and '.join(mine['reduced'])} ({where})."
            )
            looks = {"communication type lost": communication, "reduced in another type": True}
            SAYS.refuse(looks, told=told)


def _look_at_offload(one: Trial) -> None:
    for where, config, seen, said in _measured(one):
        policy = seen["given"].get("offload_policy")
        away = isinstance(policy, dict) and policy["policy"] == "cpu"
        pinned = policy["pinned"] if away else None
        alone = away and said.pinned is None
        on_host = [
            key
            for key in ("offload_optimizer", "offload_param")
            if config[ZERO].get(key, {}).get("device") == "cpu"
        ]
        looks = {
            "parameters moved as well": alone and on_host[:1] == ["offload_optimizer"],
            "states moved as well": alone and on_host,
            "none is no offload #1": alone and said.off,
            "offloaded by itself": alone,
            "left on the device": said.pinned is not None and not away,
            "pinned memory": pinned != said.pinned,
        }
        SAYS.refuse(looks, where=where, config=short(config), pinned=pinned)


def _look_at_names(one: Trial) -> None:
    """Nothing of the section may be lost in silence, and nothing be called lost that is said."""
    for where, config, seen, said in _measured(one):
        names = set(seen["unsaid"])
        missing, extra = sorted(said.unsaid - names), sorted(names - said.unsaid)
        looks = {
            "lost in silence": missing,
            "none is no offload #2": said.off & set(extra),
            "said after all": extra and extra[0] in config[ZERO],
            "not in the section": extra,
        }
        about = {"missing": [*missing, ""][0], "extra": [*extra, ""][0], "section": ZERO}
        SAYS.refuse(looks, where=where, **about)


LOOKS = Looks(
    returned=_look_at_refusals,
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_run,
    traffic=_look_at_offload,
    memory=_look_at_names,
)
IN_FSDP2 = Exercise(judge=judge_fsdp, **SAYS.about)
