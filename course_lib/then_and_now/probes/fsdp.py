"""What the Trainer's arguments make today of the page's words for FSDP.

The words are read without ranks: what is handed on to accelerate is looked at. Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.asking import left_as_found, refusal, remark
from course_lib.then_and_now.probes.trainer import _arguments

# The words of FSDP1 that the page explains, each set to what it is not by default.
OF_FSDP1 = {
    "backward_prefetch": "backward_pre",
    "forward_prefetch": True,
    "limit_all_gathers": True,
    "sync_module_states": True,
    "use_orig_params": True,
}


def full_shard() -> str:
    """`fsdp="full_shard auto_wrap"`: taken, translated, deprecated."""
    return _translated("full_shard auto_wrap", {"reshard_after_forward": True})


def shard_grad_op() -> str:
    return _translated("shard_grad_op auto_wrap", {"reshard_after_forward": False})


def offload() -> str:
    return _translated("full_shard offload", {"cpu_offload": True})


def hybrid_shard() -> str:
    return refusal(lambda: _arguments({"fsdp": "hybrid_shard"}), ValueError)


def no_shard() -> str:
    return refusal(lambda: _arguments({"fsdp": "no_shard"}), ValueError)


def fsdp1() -> str:
    """What the page describes is FSDP1; who asks for it hears that it goes."""
    return remark(lambda: _arguments({"fsdp": True, "fsdp_config": {"version": 1}}))


def wrap_by_size() -> str:
    """`min_num_params` alone: the policy stays the one by class, unless it is named too."""
    alone = _handed_on({"min_num_params": 2000})
    named = _handed_on({"min_num_params": 2000, "auto_wrap_policy": "SIZE_BASED_WRAP"})
    if named.get("min_num_params") != 2000:
        return f"the size is lost in {named}"
    return f"handed on: {alone}"


def wrap_by_class() -> str:
    """`fsdp_transformer_layer_cls_to_wrap` as an argument; it is a key of fsdp_config."""
    said = refusal(
        lambda: _arguments({"fsdp": True, "fsdp_transformer_layer_cls_to_wrap": "GPT2Block"}),
        TypeError,
    )
    names = _handed_on({"transformer_layer_cls_to_wrap": ["GPT2Block"]})
    return f"{said}; handed on: {names['transformer_cls_names_to_wrap']}"


def words_of_fsdp1() -> str:
    """Which of FSDP1's words reach accelerate, with version 2 and with version 1."""
    two = sorted(set(OF_FSDP1) & set(_handed_on(dict(OF_FSDP1))))
    one = sorted(set(OF_FSDP1) & set(_handed_on({**OF_FSDP1, "version": 1})))
    return f"handed on with version 2: {two}; with version 1: {one}"


def _translated(words: str, keys: dict) -> str:
    made = []

    def ask() -> None:
        made.append(_arguments({"fsdp": words}).fsdp_plugin_args)

    said = remark(ask)
    got = {name: made[0].get(name) for name in keys}
    return f"{said} Handed on: {got}"


def _handed_on(config: dict) -> dict:
    with left_as_found():
        return dict(_arguments({"fsdp": True, "fsdp_config": config}).fsdp_plugin_args)
