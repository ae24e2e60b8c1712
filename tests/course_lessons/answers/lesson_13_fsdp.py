"""Answers to `in_fsdp2` of lesson 13: right, right by another road, and wrong in likely ways."""

from __future__ import annotations

from functools import partial

from tests.course_lessons.answers import changed

WORDS = """
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

SHORT = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def in_fsdp2(config):
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    if stage == 0:
        raise ValueError("nothing is sharded")
    param, states = zero.get("offload_param", {}), zero.get("offload_optimizer", {})
    where = [block.get("device", "none") for block in (param, states)]
    if "nvme" in where:
        raise ValueError("no files")
    half = None
    for name in ("fp16", "bf16"):
        if config.get(name, {}).get("enabled"):
            half = SHORT[name]
    reduced = SHORT.get(config.get("communication_data_type"))
    arguments = {
        "reshard_after_forward": stage == 3,
        "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=reduced),
    }
    unsaid = set(zero) - {"stage"}
    unsaid -= {n for n in unsaid if zero.get(n) == {"device": "none"}}
    if where == ["cpu", "cpu"]:
        pinned = param.get("pin_memory", True)
        arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=pinned)
        unsaid -= {"offload_param", "offload_optimizer"}
    return arguments, unsaid
"""
words = partial(changed, WORDS)
# Another style: arguments only where they say something, names in full, as a list.
WORDS_BY_NEED = """
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy


def dtype_of(config):
    if config.get("bf16", {}).get("enabled", False):
        return torch.bfloat16
    return torch.float16 if config.get("fp16", {}).get("enabled", False) else torch.float32


def in_fsdp2(config):
    zero = dict(config.get("zero_optimization", {}))
    for name in ("offload_param", "offload_optimizer"):
        if name in zero and zero[name]["device"] == "none":
            del zero[name]
    stage = zero.pop("stage", 0)
    devices = {k: zero[k]["device"] for k in ("offload_param", "offload_optimizer") if k in zero}
    if not stage or "nvme" in devices.values():
        raise ValueError(f"FSDP2 has nothing like {config}")
    computed = dtype_of(config)
    short = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    reduced = short.get(config.get("communication_data_type"), computed)
    said = dict(reshard_after_forward=stage >= 3, offload_policy=OffloadPolicy())
    if len(devices) == 2:
        block = zero.pop("offload_param")
        zero.pop("offload_optimizer")
        pinned = {name: block[name] for name in block if name == "pin_memory"}
        said["offload_policy"] = CPUOffloadPolicy(**pinned)
    if (computed, reduced) != (torch.float32, torch.float32):
        said["mp_policy"] = MixedPrecisionPolicy(computed, reduced)
    return said, [f"zero_optimization.{name}" for name in sorted(zero)]
"""
NO_OFFLOAD = '    unsaid -= {n for n in unsaid if zero.get(n) == {"device": "none"}}\n'
STAGE_3 = '        "reshard_after_forward": stage == 3,\n'
WRONG_WORDS = {
    "always frees": (words((STAGE_3, '        "reshard_after_forward": True,\n')),
                     "freed after the forward"),
    "never frees": (words((STAGE_3, '        "reshard_after_forward": False,\n')),
                    "kept after the forward"),
    "one type for all": (
        words(("    arguments = {\n", "    half = half or reduced\n    arguments = {\n")),
        "the reduction's type for all",
    ),
    "files are memory": (
        words(('    if "nvme" in where:\n        raise ValueError("no files")\n',
               '    where = ["cpu" if w == "nvme" else w for w in where]\n')),
        "files forgotten",
    ),
    "no word of freeing": (words((STAGE_3, "")), "left to the default"),
    "stage 0 too": (words(("if stage == 0:", "if stage is None:")), "sharded at stage 0"),
    "communication type lost": (words((", reduce_dtype=reduced", "")), "communication type lost"),
    "always reduces in float32": (
        words(('SHORT.get(config.get("communication_data_type"))',
               'SHORT[config.get("communication_data_type", "fp32")]')),
        "wrong reduction type",
    ),
    "on because it is there": (
        words(('        if config.get(name, {}).get("enabled"):\n',
               "        if name in config and half is None:\n")),
        "switched off",
    ),
    "never in 16 bits": (words(("half = SHORT[name]", "half = None")), "wrong precision"),
    "states alone are all": (
        words(('where == ["cpu", "cpu"]', '"cpu" in where')),
        "parameters moved as well",
    ),
    "nothing on the host": (words(('where == ["cpu", "cpu"]', "False")), "left on the device"),
    "always pinned": (words(("pin_memory=pinned", "")), "pinned memory"),
    "never pinned": (words(("pin_memory=pinned", "pin_memory=False")), "pinned memory"),
    "nothing is lost": (words(("return arguments, unsaid", "return arguments, set()")),
                        "not listed"),
    "all is lost": (words(('set(zero) - {"stage"}', "set(zero)")), "listed although expressed"),
    "the loop's keys": (
        words(('unsaid = set(zero) - {"stage"}',
               'unsaid = set(zero) - {"stage"} | {"gradient_clipping"}')),
        "not in the section",
    ),
    "with the mesh": (words((STAGE_3, STAGE_3 + '        "mesh": None,\n')), "no argument for it"),
    "a policy that is none": (
        words((
            "MixedPrecisionPolicy(param_dtype=half, reduce_dtype=reduced)", '"bf16"')),
        "fully_shard refuses",
    ),
    "refuses 16 bits": (
        words(("            half = SHORT[name]\n",
               "            raise ValueError(name)\n")),
        "refused a valid config",
    ),
    "arguments alone": (words(("return arguments, unsaid", "return arguments")), "not a pair"),
    "nothing": (words(("return arguments, unsaid", "return")), "nothing returned"),
    "in place": (
        words(('stage = zero.get("stage", 0)', 'stage = zero.pop("stage", 0)')),
        "input changed",
    ),
    "sections that are there": (
        words(('where == ["cpu", "cpu"]', "param and states")), "none is no offload"
    ),
    "both are there and one is on the host": (
        words(('where == ["cpu", "cpu"]', 'param and states and "cpu" in where')),
        "parameters moved as well",
    ),
    "both of them none": (
        words(('where == ["cpu", "cpu"]', "param and where[0] == where[1]")),
        "none is no offload",
    ),
    "none is lost too": (
        words((NO_OFFLOAD, "")), "none is no offload"
    ),
    "pinned as the states are": (
        words(('param.get("pin_memory", True)', 'states.get("pin_memory", True)')),
        "pinned memory",
    ),
    "pinned where both are": (
        words(('param.get("pin_memory", True)',
               'param.get("pin_memory", True) and states.get("pin_memory", True)')),
        "pinned memory",
    ),
    "files of the states alone": (words(('"nvme" in where', 'where[1] == "nvme"')),
                                  "files forgotten"),
    "parameters alone move": (words(('where == ["cpu", "cpu"]', 'where[0] == "cpu"')),
                              "states moved as well"),
    "any 16 bits are bfloat16": (words(("half = SHORT[name]", "half = torch.bfloat16")),
                                 "wrong precision"),
    "types swapped": (words(("param_dtype=half, reduce_dtype=reduced",
                             "param_dtype=reduced, reduce_dtype=half")),
                      "wrong precision"),
    "a section that has to be there": (
        words(('config.get("zero_optimization", {})', 'config["zero_optimization"]')),
        "wrong error",
    ),
    "fp16 left out": (words(('"fp16": torch.float16, ', ""), ("half = SHORT[name]",
                             "half = SHORT.get(name, torch.float16)")),
                      "communication type lost"),
    "types by their names": (
        words(('{"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}',
               '{"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}')),
        "fully_shard refuses",
    ),
}  # fmt: skip

RIGHT = {"in_fsdp2": {"always all": WORDS, "by need": WORDS_BY_NEED}}
WRONG = {"in_fsdp2": WRONG_WORDS}
