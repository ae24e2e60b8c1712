"""Answers to `mend_config` of lesson 13: right, right by another road, and wrong in likely ways."""

from __future__ import annotations

from functools import partial

from course_lessons.lesson_13.broken import PRINTED, drawn
from tests.course_lessons.answers import changed

MEND = """
import copy


def mend_config(name, config, facts):
    config = copy.deepcopy(config)
    zero = config.get("zero_optimization", {})
    if name == "stage":
        config["zero_optimization"] = config.pop("zero_optimisation")
    if name == "offload":
        zero["offload_optimizer"] = config.pop("offload_optimizer")
    if name == "precision":
        config["fp16"]["enabled"] = False
    if name == "parameters":
        zero["stage"] = 3
    if name == "batch":
        per_step = config["train_micro_batch_size_per_gpu"] * facts["world"]
        config["gradient_accumulation_steps"] = config["train_batch_size"] // per_step
    if name == "auto":
        h = facts["hidden"]
        meant = {
            "reduce_bucket_size": h * h,
            "stage3_prefetch_bucket_size": int(0.9 * h * h),
            "stage3_param_persistence_threshold": 10 * h,
        }
        zero.update({key: size for key, size in meant.items() if zero[key] == "auto"})
    if name == "buckets":
        size = int(facts["room"] / 4.5 / 2 / 2)
        zero["reduce_bucket_size"] = size
        zero["allgather_bucket_size"] = size
    if name == "schedule":
        config["scheduler"]["params"]["total_num_steps"] = facts["steps"]
    return config
"""
mend = partial(changed, MEND)
# Another style: nothing in place, sections taken out, DeepSpeed left to fill in the batch.
MEND_ANEW = """
def without(config, *names):
    return {k: v for k, v in config.items() if k not in names}


def with_zero(config, **more):
    return {**config, "zero_optimization": {**config["zero_optimization"], **more}}


def worked_out(key, h):
    if key.startswith("reduce"):
        return h**2
    return 9 * h**2 // 10 if "prefetch" in key else h * 10


def buckets(config, facts):
    return with_zero(
        config, reduce_bucket_size=facts["room"] // 24, allgather_bucket_size=facts["room"] // 48
    )


def schedule(config, facts):
    old = config["scheduler"]
    params = dict(old["params"], total_num_steps=facts["steps"])
    return {**config, "scheduler": {**old, "params": params}}


def mend_config(name, config, facts):
    h = facts["hidden"]
    mends = {
        "stage": lambda: {
            ("zero_optimization" if k == "zero_optimisation" else k): v for k, v in config.items()
        },
        "offload": lambda: with_zero(
            without(config, "offload_optimizer"), offload_optimizer=config["offload_optimizer"]
        ),
        "precision": lambda: without(config, "fp16"),
        "parameters": lambda: with_zero(config, stage=3),
        "batch": lambda: without(config, "gradient_accumulation_steps"),
        "auto": lambda: with_zero(
            config,
            **{
                key: worked_out(key, h)
                for key, value in config["zero_optimization"].items()
                if value == "auto"
            },
        ),
        "buckets": lambda: buckets(config, facts),
        "schedule": lambda: schedule(config, facts),
    }
    return mends[name]()
"""
UPDATE = "        zero.update("
HIDDEN = next(one for one in drawn(PRINTED) if one.name == "auto").facts["hidden"]
SPELT = '        config["zero_optimization"] = config.pop("zero_optimisation")\n'
MOVED = '        zero["offload_optimizer"] = config.pop("offload_optimizer")\n'
OFF = '        config["fp16"]["enabled"] = False\n'
AT_3 = '        zero["stage"] = 3\n'
TAKES = '        config["gradient_accumulation_steps"] = config["train_batch_size"] // per_step\n'
SIZE = "        size = int(facts['room'] / 4.5 / 2 / 2)\n".replace("'", '"')
ENDS = '        config["scheduler"]["params"]["total_num_steps"] = facts["steps"]\n'
ZERO_BATCH = "config['gradient_accumulation_steps']"
# How an answer is wrong, and the name under which it is refused.
WRONG_MEND = {
    "deletes what is unknown": (
        mend((SPELT, '        del config["zero_optimisation"]\n')),
        "setting removed",
    ),
    "gives up the overlap": (
        mend((SIZE, '        zero["overlap_comm"] = False; size = 500000000\n')),
        "setting removed",
    ),
    "wrong batch": (
        mend(
            (
                TAKES,
                '        k = config["gradient_accumulation_steps"]\n'
                '        config["train_batch_size"] = per_step * k\n',
            ),
        ),
        "wrong batch",
    ),
    "the printed numbers": (mend(('h = facts["hidden"]', f"h = {HIDDEN}")), "typed in"),
    "as it was": ("def mend_config(name, config, facts):\n    return config\n", "still misspelt"),
    "both spellings": (
        mend(('config.pop("zero_optimisation")', 'config["zero_optimisation"]')),
        "both spellings",
    ),
    "the stage alone": (
        mend(
            (SPELT, '        stage = config.pop("zero_optimisation")["stage"]\n'
             '        config["zero_optimization"] = {"stage": stage}\n'),
        ),
        "settings lost on the way",
    ),
    "the offload deleted": (
        mend((MOVED, '        config.pop("offload_optimizer")\n')),
        "setting removed",
    ),
    "the offload left": (mend((MOVED, "        pass\n")), "one level too high"),
    "the offload on both levels": (
        mend(('config.pop("offload_optimizer")', 'config["offload_optimizer"]')),
        "on both levels",
    ),
    "under the optimizer": (
        mend(
            (
                MOVED,
                '        moved = config.pop("offload_optimizer")\n'
                '        config["optimizer"]["offload_optimizer"] = moved\n',
            ),
        ),
        "in the wrong section",
    ),
    "without pinning": (
        mend(
            (
                MOVED,
                '        zero["offload_optimizer"] = {"device": "cpu"}\n'
                '        config.pop("offload_optimizer")\n',
            ),
        ),
        "settings lost on the way",
    ),
    "fp16 it is": (
        mend((OFF, '        config["bf16"]["enabled"] = False\n')),
        "wrong precision chosen",
    ),
    "no half at all": (
        mend((OFF, '        del config["fp16"], config["bf16"]\n')),
        "setting removed",
    ),
    "both precisions": (mend((OFF, "        pass\n")), "both precisions"),
    "off by a misspelt key": (
        mend((OFF, '        config["fp16"] = {"enable": False}\n')),
        "new fault",
    ),
    "off without a section": (mend((OFF, '        config["fp16"] = False\n')), "new fault"),
    "no parameters away": (
        mend((AT_3, '        del zero["offload_param"]\n')),
        "setting removed",
    ),
    "still at stage 2": (mend((AT_3, "        pass\n")), "not sharded, not offloaded"),
    "one rank's triple": (mend((' * facts["world"]', "")), "world size left out"),
    "wrong micro-batch": (
        mend(
            (
                TAKES,
                '        k = config["gradient_accumulation_steps"] * facts["world"]\n'
                '        config["train_micro_batch_size_per_gpu"] = 1\n'
                '        config["gradient_accumulation_steps"] = (\n'
                '            config["train_batch_size"] // facts["world"]\n'
                "        )\n",
            ),
        ),
        "wrong micro-batch",
    ),
    "no batch named": (mend((TAKES, '        del config["train_batch_size"]\n')), "wrong batch"),
    "does not multiply": (mend((TAKES, "        pass\n")), "does not multiply"),
    "auto left": (
        mend(('            "stage3_prefetch_bucket_size": int(0.9 * h * h),\n', "")),
        "auto left",
    ),
    "auto taken out": (
        mend((UPDATE, '        meant.pop("reduce_bucket_size")\n'
              '        zero.pop("reduce_bucket_size")\n' + UPDATE)),
        "default instead",
    ),
    "with a fraction": (mend(("int(0.9 * h * h)", "0.9 * h * h + 0.25")), "not a whole number"),
    "in bytes": (mend((": h * h,", ": 2 * h * h,")), "bytes"),
    "the hidden size": (mend((": h * h,", ": h,")), "wrong value"),
    "one bucket of two": (mend(("4.5 / 2 / 2", "4.5 / 2")), "a factor of two"),
    "no overlap counted": (mend(("4.5 / 2 / 2", "2 / 2")), "overlap costs nothing"),
    "the room as a size": (mend(("4.5 / 2 / 2", "2")), "bytes and overlap forgotten"),
    "half an element": (mend(("/ 4.5 / 2 / 2)", "/ 4.5 / 2 / 2) - 0.5")), "new fault"),
    "hardly a bucket": (mend(("4.5 / 2 / 2", "100")), "smaller than needed"),
    "one of them left": (
        mend(('        zero["allgather_bucket_size"] = size\n', "")),
        "bucket unchanged",
    ),
    "no decay": (
        mend((ENDS, '        config["scheduler"]["type"] = "WarmupLR"\n')),
        "wrong schedule",
    ),
    "no schedule": (mend((ENDS, '        del config["scheduler"]\n')), "setting removed"),
    "beside the params": (
        mend(('["scheduler"]["params"]["total', '["scheduler"]["total')),
        "steps missing",
    ),
    "after the warm-up": (
        mend(
            (
                ENDS,
                '        params = config["scheduler"]["params"]\n'
                '        params["total_num_steps"] = facts["steps"] + params["warmup_num_steps"]\n',
            ),
        ),
        "warm-up on top",
    ),
    "micro-batches": (
        mend(('facts["steps"]\n', f'facts["steps"] * {ZERO_BATCH}\n')),
        "micro-batches counted",
    ),
    "something else too": (
        mend((AT_3, AT_3 + '        config["gradient_clipping"] = 1.0\n')),
        "other keys changed",
    ),
    "a shallow copy": (mend(("copy.deepcopy", "copy.copy")), "input changed"),
    "nothing": (mend(("    return config\n", "    return\n")), "nothing returned"),
    "as text": (mend(("    return config\n", "    return str(config)\n")), "not a config"),
    "rounded up": (mend(("int(0.9 * h * h)", "-(-9 * h * h // 10)")), "rounded up"),
    "all three overwritten": (mend((' if zero[key] == "auto"', "")), "not auto"),
    "overwritten where it is smaller": (
        mend(('if zero[key] == "auto"', 'if zero[key] == "auto" or zero[key] < 2**31')),
        "not auto",
    ),
    "the reduction's bucket for all that is no auto": (
        mend(('if zero[key] == "auto"})\n', 'if zero[key] == "auto"})\n        '
              'zero.update(dict.fromkeys([k for k in meant if zero[k] != meant[k]], '
              'zero["reduce_bucket_size"] // 2))\n')),
        "not auto",
    ),
    "half a micro-batch": (
        mend(('config["train_batch_size"] // per_step',
              'config["train_batch_size"] / per_step')),
        "not a whole number",
    ),
    "a part of an element": (
        mend(('int(facts["room"] / 4.5 / 2 / 2)', 'facts["room"] / 4.5 / 2 / 2')),
        "new fault",
    ),
    "a number in quotes": (mend((": 10 * h,", ": str(10 * h),")), "a number as text"),
}  # fmt: skip

RIGHT = {"mend_config": {"in place": MEND, "anew": MEND_ANEW}}
WRONG = {"mend_config": WRONG_MEND}
