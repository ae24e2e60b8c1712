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
            raise SAYS(
                "refused though it can be said",
                where=where,
                text=seen["text"],
                config=short(config),
            )
        if refused or known:
            continue
        if seen["kind"] == trial.STOPPED:
            raise SAYS("another error", text=seen["text"], where=where, config=short(config))
        if not config.get(ZERO, {}).get("stage"):
            raise SAYS("sharded what was whole", where=where)
        raise SAYS("files forgotten", where=where)


def _look_at_shape(one: Trial) -> None:
    for where, _, seen in one.each():
        if seen["kind"] == trial.REFUSED:
            continue
        if seen["kind"] == "NoneType":
            text = f"None came back at {where}. Did you forget `return`?"
            raise Finding("nothing returned", text)
        if seen["kind"] != "pair":
            raise SAYS("not a pair", kind=seen["kind"], where=where)
        strange = sorted(set(seen["given"]) - set(trial.KNOWN))
        if strange:
            raise SAYS(
                "no argument for it", strange=strange[0], where=where, known=", ".join(trial.KNOWN)
            )
        if seen["text"]:
            raise SAYS("fully_shard refuses", text=seen["text"], where=where)
        if seen["unsaid"] is None:
            text = f"The second of the pair is no set or list of names at {where}."
            raise Finding("not a pair", text)


def _look_at_inputs(one: Trial) -> None:
    for where, _, seen in one.each():
        if seen["changed"]:
            raise SAYS("input changed", where=where)


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
        raise SAYS("left to the default", told=told)
    if said.reshard and mine["held"] > right["held"]:
        raise SAYS("kept after the forward", told=told)
    raise SAYS("freed after the forward", told=told)


def _refuse_compute(where: str, config: dict, mine: dict, said: Words) -> None:
    told = f"It was run, and gathers {' and '.join(mine['gathered'])} ({where}). {short(config)}"
    if said.parameters is None and "communication_data_type" in config:
        raise SAYS("the reduction's type for all", told=told)
    if said.parameters is None:
        raise SAYS("another precision #2", told=told)
    if mine["gathered"] == [DTYPES["bf16"]] and "bf16" not in config:
        raise SAYS("another precision #3", told=told)
    off = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled") is False]
    if off and mine["gathered"] != ["float32"]:
        raise SAYS("switched off", told=told)
    raise SAYS("another precision #1", told=told)


def _refuse_reduction(where: str, config: dict, mine: dict, said: Words) -> None:
    told = f"It was run, and reduces gradients in {' and '.join(mine['reduced'])} ({where})."
    if "communication_data_type" in config:
        raise SAYS("communication type lost", told=told)
    raise SAYS("reduced in another type", told=told)


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
                raise SAYS("none is no offload", none=NONE, where=where, config=short(config))
            raise SAYS("offloaded by itself", where=where)
        if said.pinned is None:
            continue
        if not away:
            text = f"Parameters and states are to be on the host ({where}), and no policy says so."
            raise SAYS("left on the device", text=text, config=short(config))
        if policy["pinned"] != said.pinned:
            raise SAYS("pinned memory", pinned=policy["pinned"], where=where, config=short(config))


def _look_at_names(one: Trial) -> None:
    """Nothing of the section may be lost in silence, and nothing be called lost that is said."""
    for where, config, seen, said in _measured(one):
        names = set(seen["unsaid"])
        missing, extra = sorted(said.unsaid - names), sorted(names - said.unsaid)
        if missing:
            raise SAYS("lost in silence", missing=missing[0], where=where)
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
IN_FSDP2 = Exercise(judge=judge_fsdp, **SAYS.about)
