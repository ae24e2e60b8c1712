"""`in_fsdp2` of lesson 13: a ZeRO config expressed with the arguments of `fully_shard`. A small
model is sharded with the answer's and with the reference's arguments; the ledger shows repeated
gathers and the types of the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from itertools import zip_longest

from torch.distributed.device_mesh import DeviceMesh

from course_classroom.judge import bench, frame
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, fresh_seed
from course_classroom.judge.words import Page
from course_lessons.lesson_13 import fsdp_trial as trial
from course_lessons.lesson_13.words import AWAY, PARAM, REDUCED, STATES, drawn, words
from course_lib.collectives.call import Group
from course_lib.peers.deepspeed_config.auto import ZERO

SAYS = Page(__file__, "in_fsdp2")

KNOWN = {"reshard_after_forward", "mp_policy", "offload_policy"}


def judge_fsdp(answer: Answer, judge: Judge) -> None:
    """Try all configs on three ranks, then a few on two ranks that are not the first two."""
    judge.take(answer, __name__, trial.__name__, "torch.distributed.fsdp")
    for members, few in ((THREE, None), (TWO, 4)):  # on two: stages and types
        configs, when = drawn(fresh_seed())[:few], on(members)
        reports = judge.trial(answer, run, configs, when, members=members, when=when)
        notes = [note for report in reports for note in report]
        for looks in zip_longest(*(note["looks"] for note in notes), fillvalue={}):
            for note, holds in zip(notes, looks, strict=True):
                SAYS.refuse(holds, **note["about"])


# ---- code on the judge's ranks
def run(function: Callable, group: Group, configs: list[dict], when: str) -> list[dict]:
    """Run `function(config)` for each config; return the looks and the values for their words."""
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    runs: dict[str, dict] = {}  # one for all configs with the same arguments

    def once(keywords: Mapping) -> dict:
        key = str(sorted(keywords.items(), key=str))
        return runs.get(key) or runs.setdefault(key, trial.measured(mesh, keywords))

    notes = []
    for k, config in enumerate(configs, 1):
        about = {"where": f"config {k}, rank {group.rank()}, {when}"}
        notes.append({"looks": [*look_at(function, config, once, about)], "about": about})
    return notes


def look_at(
    function: Callable, config: dict, once: Callable[[Mapping], dict], about: dict
) -> Iterator[dict[str, object]]:
    """Yield the looks at refusals, the result's form, a step with it, offload and names; each
    assumes that the earlier looks pass. `about` receives the values for their words."""
    said, section = words(config), config.get(ZERO, {})
    out, error, given = bench.called(function, config)
    refused = isinstance(error, ValueError)
    if said and error and not refused:
        raise error
    yield {
        "refused a valid config": refused and said,
        "wrong error": not said and error and not refused,
        "sharded at stage 0": not (said or refused or section.get("stage")),
        "files forgotten": not (said or refused),
    }
    pair = isinstance(out, tuple | list) and len(out) == 2 and isinstance(out[0], Mapping)
    keywords, names = (dict(out[0]), out[1]) if pair else ({}, ())
    strange = ", ".join(sorted(str(name) for name in keywords if name not in KNOWN))
    listed, mine = isinstance(names, list | tuple | Set | Mapping), None
    if pair and not strange and said:
        try:
            mine = once(keywords)
        except (TypeError, ValueError, AttributeError, RuntimeError) as failure:
            error = failure
    about |= {"kind": type(out).__name__, "text": f"{type(error).__name__}: {error}"[:200]}
    about |= {"config": f"The config: {config}.", "strange": strange}
    yield {
        "nothing returned": out is None and not refused,
        "not a pair #1": not (pair or refused),
        "no argument for it": strange,
        "fully_shard refuses": not (mine or refused),
        "not a pair #2": not listed,
        "input changed": given != (config,),
    }
    if not (mine and listed):
        return
    right, named = once(trial.arguments(said)), REDUCED in config
    off = {key for key in right if mine[key] != right[key]} - {"pinned"}
    typed, freed = off & {"gathered", "output"}, off & {"again", "held"}
    gathered, reduced = (" and ".join(mine[key]) for key in ("gathered", "reduced"))
    about["told"] = (
        f"The check used your arguments ({about['where']}, stage {section['stage']}). Parameters "
        f"were gathered in {gathered} with {mine['again']} all-gathers in the backward pass, "
        f"{mine['held']} bytes of parameters were held before it, and gradients were reduced in "
        f"{reduced}."
    )
    yield {
        "the reduction's type for all": typed and not said.parameters and named,
        "wrong precision #2": typed and not said.parameters,
        "wrong precision #3": typed and gathered == "bfloat16" and "bf16" not in config,
        "switched off": typed and {"enabled": False} in config.values() and gathered != "float32",
        "wrong precision #1": typed,
        "left to the default": freed and keywords.get("reshard_after_forward") is None,
        "kept after the forward": freed and said.reshard and mine["held"] > right["held"],
        "freed after the forward": freed,
        "communication type lost": off and named,
        "wrong reduction type": off,
    }
    pinned, wanted = mine["pinned"], right["pinned"]
    alone = pinned is not None and wanted is None
    host = [name for name in AWAY if section.get(name, {}).get("device") == "cpu"]
    about["pinned"] = pinned
    yield {
        "parameters moved as well": alone and host == [STATES],
        "states moved as well": alone and host == [PARAM],
        "none is no offload #1": alone and said.off,
        "offloaded by itself": alone,
        "left on the device": wanted is not None and pinned is None,
        "pinned memory": pinned != wanted,
    }
    unsaid = {str(name).removeprefix(f"{ZERO}.") for name in names}
    missing, extra = sorted(said.unsaid - unsaid), sorted(unsaid - said.unsaid)
    about |= {"missing": "".join(missing[:1]), "extra": "".join(extra[:1])}
    yield {
        "not listed": missing,
        "none is no offload #2": said.off & set(extra),
        "listed although expressed": extra and extra[0] in section,
        "not in the section": extra,
    }


IN_FSDP2 = frame.Exercise(judge=judge_fsdp, **SAYS.about)
