"""`in_fsdp2` of lesson 13: a ZeRO config said with the arguments of `fully_shard`, and then run.

The judge's ranks shard a small model under them and under the reference's; the ledger says whether
the parameters are gathered again and in which types things travel.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_13 import fsdp_trial as trial
from course_lib.classroom.checks.lesson_13.words import DTYPES, ZERO, NoWord, Words, drawn, words
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed
from course_lib.classroom.checks.words import Page

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


ALONE = (  # moved to the host by a config: what the policy would move as well
    ("offload_optimizer", "parameters moved as well", "states"),
    ("offload_param", "states moved as well", "parameters"),
)
NONE = 'The device "none" is no offload: take the section as if it were not there.'
ABOUT = ("fp16", "bf16", "communication_data_type", "stage", "offload_param", "offload_optimizer")


def _look_at_refusals(one: Trial) -> None:
    """What FSDP2 has nothing like is refused, and nothing else."""
    for where, config, seen in one.each():
        refused, known = seen["kind"] == trial.REFUSED, reference(config) is not None
        if refused and known:
            raise Finding(
                "refused though it can be said",
                f"ValueError at {where}: {seen['text']}. FSDP2 can do what it asks for. "
                f"{short(config)}",
            )
        if refused or known:
            continue
        if seen["kind"] == trial.STOPPED:
            raise Finding(
                "another error",
                f"It ended with {seen['text']} ({where}). What FSDP2 cannot do is refused with a "
                f"ValueError, whose text says why. {short(config)}",
            )
        if not config.get(ZERO, {}).get("stage"):
            raise Finding(
                "sharded what was whole",
                f"Without a stage, or at stage 0, DeepSpeed shards nothing; `fully_shard` would "
                f"shard ({where}). Refuse it with a ValueError.",
            )
        raise Finding(
            "files forgotten",
            f"The config keeps states in files, to spare the host's memory ({where}). FSDP2 has "
            "no such place, and the host's memory, in its stead, would run out. Refuse it with a "
            "ValueError.",
        )


def _look_at_shape(one: Trial) -> None:
    for where, _, seen in one.each():
        if seen["kind"] == trial.REFUSED:
            continue
        if seen["kind"] == "NoneType":
            text = f"None came back at {where}. Did you forget `return`?"
            raise Finding("nothing returned", text)
        if seen["kind"] != "pair":
            raise Finding(
                "not a pair",
                f"A {seen['kind']} came back at {where}; expected is a pair: a dictionary of "
                "keyword arguments, and the names that have none.",
            )
        strange = sorted(set(seen["given"]) - set(trial.KNOWN))
        if strange:
            raise Finding(
                "no argument for it",
                f"`{strange[0]}` at {where}: `fully_shard` does not take it, or the caller gives "
                f"it. Asked are {', '.join(trial.KNOWN)}; the rest goes into the list.",
            )
        if seen["text"]:
            raise Finding(
                "fully_shard refuses", f"`fully_shard` ended with {seen['text']} ({where})."
            )
        if seen["unsaid"] is None:
            text = f"The second of the pair is no set or list of names at {where}."
            raise Finding("not a pair", text)


def _look_at_inputs(one: Trial) -> None:
    for where, _, seen in one.each():
        if seen["changed"]:
            raise Finding("input changed", f"Your function changed the config ({where}).")


def _measured(one: Trial) -> list[tuple[str, dict, dict, Words]]:
    known = [(where, config, seen, reference(config)) for where, config, seen in one.each()]
    return [entry for entry in known if entry[3] is not None]


def _look_at_run(one: Trial) -> None:
    """What the model did under the arguments, beside what it does under the right ones."""
    for where, config, seen, said in _measured(one):
        mine, right = seen["measured"], seen["right"]
        if mine["gathered"] != right["gathered"] or mine["output"] != right["output"]:
            _refuse_compute(where, config, mine, said)
        if mine["again"] != right["again"] or mine["held"] != right["held"]:
            _refuse_resharding(where, config, seen, said)
        if mine["reduced"] != right["reduced"]:
            _refuse_reduction(where, config, mine, said)


def _refuse_resharding(where: str, config: dict, seen: dict, said: Words) -> None:
    mine, right = seen["measured"], seen["right"]
    told = (
        f"It was run: {mine['again']} all-gathers in the backward, {mine['held']} bytes of "
        f"parameters held before it ({where}, stage {config[ZERO]['stage']})."
    )
    if seen["given"].get("reshard_after_forward") is None:
        raise Finding(
            "left to the default",
            f"{told} Without `reshard_after_forward` the root keeps its parameters after the "
            "forward, and every other module frees them: neither is what a stage says.",
        )
    if said.reshard and mine["held"] > right["held"]:
        raise Finding(
            "kept after the forward",
            f"{told} Stage 3 frees parameters after use and gathers them again.",
        )
    raise Finding(
        "freed after the forward",
        f"{told} Stages 1 and 2 keep the gathered parameters: nothing is gathered in the backward.",
    )


def _refuse_compute(where: str, config: dict, mine: dict, said: Words) -> None:
    told = f"It was run, and gathers {' and '.join(mine['gathered'])} ({where}). {short(config)}"
    if said.parameters is None and "communication_data_type" in config:
        raise Finding(
            "the reduction's type for all",
            f"{told} `communication_data_type` is what gradients are reduced in. Parameters keep "
            "their own type.",
        )
    if said.parameters is None:
        raise Finding("another precision", f"{told} No 16-bit type is on.")
    if mine["gathered"] == [DTYPES["bf16"]] and "bf16" not in config:
        raise Finding(
            "another precision",
            f"{told} float16 and bfloat16 have 16 bits each, and are not the same type: the config "
            "names one of them.",
        )
    off = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled") is False]
    if off and mine["gathered"] != ["float32"]:
        raise Finding("switched off", f"{told} A section can be there and off: look at `enabled`.")
    raise Finding(
        "another precision",
        f"{told} A forward in 16 bits is `param_dtype`, and the output follows it.",
    )


def _refuse_reduction(where: str, config: dict, mine: dict, said: Words) -> None:
    told = f"It was run, and reduces gradients in {' and '.join(mine['reduced'])} ({where})."
    if "communication_data_type" in config:
        raise Finding(
            "communication type lost",
            f"{told} The config names another type for what is reduced, and FSDP2 has an argument "
            "for it.",
        )
    raise Finding(
        "reduced in another type",
        f"{told} Without `communication_data_type` DeepSpeed reduces in the type it computes in.",
    )


def _look_at_offload(one: Trial) -> None:
    for where, config, seen, said in _measured(one):
        policy = seen["given"].get("offload_policy")
        away = isinstance(policy, dict) and policy["policy"] == "cpu"
        if away and said.pinned is None:
            for key, name, moved in ALONE:
                if config[ZERO].get(key, {}).get("device") == "cpu":
                    raise Finding(
                        name,
                        "`CPUOffloadPolicy` moves parameters, gradients and states together "
                        f"({where}). The config moves the {moved} alone. {short(config)}",
                    )
            if said.off:
                raise Finding("none is no offload", f"{NONE} ({where}). {short(config)}")
            raise Finding("offloaded by itself", f"Nothing is to be offloaded ({where}).")
        if said.pinned is None:
            continue
        if not away:
            text = f"Parameters and states are to be on the host ({where}), and no policy says so."
            raise Finding("left on the device", f"{text} {short(config)}")
        if policy["pinned"] != said.pinned:
            raise Finding(
                "pinned memory",
                f"`pin_memory` is {policy['pinned']} ({where}). What the config says of it, or "
                "where it says nothing both libraries' default, is something else. "
                f"{short(config)}",
            )


def _look_at_names(one: Trial) -> None:
    """Nothing of the section may be lost in silence, and nothing be called lost that is said."""
    for where, config, seen, said in _measured(one):
        names = set(seen["unsaid"])
        missing, extra = sorted(said.unsaid - names), sorted(names - said.unsaid)
        if missing:
            raise Finding(
                "lost in silence",
                f"`{missing[0]}` has no argument in `fully_shard`, and is not in your list "
                f"({where}). A reader of the translation would believe that it was translated.",
            )
        if said.off & set(extra):
            text = f"{NONE} Nothing of it is lost, and it is in your list ({where})."
            raise Finding("none is no offload", text)
        if extra and extra[0] in config[ZERO]:
            text = f"`{extra[0]}` is in your list, and your arguments express it ({where})."
            raise Finding("said after all", text)
        if extra:
            text = f"`{extra[0]}` is in your list and no key of this config's `{ZERO}` ({where})."
            raise Finding("not in the section", text)


LOOKS = Looks(
    returned=_look_at_refusals,
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_run,
    traffic=_look_at_offload,
    memory=_look_at_names,
)
IN_FSDP2 = Exercise(judge=judge_fsdp, **Page("lesson_13/in_fsdp2").about)
