"""DeepSpeed's own engine on two ranks: the options of stages 2 and 3, optimizers, recomputation."""

from __future__ import annotations

import pytest
import torch

from course_lib.peers.ways.with_deepspeed import has_fp16
from tests.course_lib.peers.then_and_now import parts
from tests.course_lib.peers.then_and_now.parts import (
    batch_of,
    gpt2,
    meet,
    needs_deepspeed,
    settings,
)

pytestmark = [needs_deepspeed, pytest.mark.slow]
STEPS = 3


def curve(deepspeed, me, config, model=None, optimizer=None, added=None):
    """The losses of a few steps on each rank's own data; `added` collects the dtypes in which
    gradients wait for the next micro-batch."""
    model = gpt2(seed=2) if model is None else model
    trained = model.parameters() if optimizer is None else None
    engine = deepspeed.initialize(
        model=model, model_parameters=trained, config=config, optimizer=optimizer
    )[0]
    losses = []
    for step in range(STEPS):
        loss = engine(**batch_of(me, step)).loss
        engine.backward(loss)
        if added is not None:
            sums = engine.optimizer.averaged_gradients
            added += [str(one.dtype) for group in sums.values() for one in group or ()]
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses


FULL_2 = {
    "overlap_comm": True,
    "allgather_partitions": True,
    "allgather_bucket_size": 700,
    "reduce_scatter": True,
    "reduce_bucket_size": 700,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}
FULL_3 = {
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 500,
    "reduce_bucket_size": 700,
    "stage3_prefetch_bucket_size": 300,
    "stage3_param_persistence_threshold": 20,
    "stage3_max_live_parameters": 1000,
    "stage3_max_reuse_distance": 1000,
    "stage3_gather_16bit_weights_on_model_save": True,
}
ON_HOST = {"device": "cpu", "pin_memory": False}


def in_full(me):
    deepspeed = meet(me)
    # torch's Adam under offload: DeepSpeed's own has to be compiled.
    away = {"zero_force_ds_cpu_optimizer": False}
    runs = {
        "stage 0": settings(0),
        "stage 2 in full": settings(2, zero=FULL_2),
        "stage 2 offloaded": settings(2, zero={**FULL_2, "offload_optimizer": ON_HOST}, **away),
        "stage 3 in full": settings(3, zero=FULL_3),
        "stage 3 offloaded": settings(
            3, zero={**FULL_3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST}, **away
        ),
    }
    return {name: curve(deepspeed, me, config) for name, config in runs.items()}


def test_every_option_of_the_pages_examples_trains_the_same(pool):
    for curves in parts.run(pool, 2, in_full):
        plain = curves.pop("stage 0")
        assert plain[-1] < plain[0]
        for name, losses in curves.items():
            assert losses == pytest.approx(plain, rel=2e-5), name


def foreign(me):
    """An optimizer that DeepSpeed has not tried, alone and with offload."""
    deepspeed = meet(me)

    def with_sgd(**more):
        config = settings(2, **more)
        del config["optimizer"]
        model = gpt2(seed=2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return curve(deepspeed, me, config, model, sgd)

    host = {"zero": {"offload_optimizer": ON_HOST}, "zero_allow_untested_optimizer": True}
    said = []
    for more in ({}, host):
        with pytest.raises(Exception, match=r"optimizer") as caught:
            with_sgd(**more)
        said.append(str(caught.value))
    here = with_sgd(zero_allow_untested_optimizer=True)
    return said, here, with_sgd(zero_force_ds_cpu_optimizer=False, **host)


def test_a_foreign_optimizer_has_to_be_asked_for(pool):
    for (untested, slow), here, away in parts.run(pool, 2, foreign):
        assert '"zero_allow_untested_optimizer": true' in untested
        assert '"zero_force_ds_cpu_optimizer": false' in slow
        assert here[-1] < here[0]
        assert away == pytest.approx(here, rel=2e-5)


def recomputed(me):
    """How often a block runs in a step: torch's checkpointing, DeepSpeed's block of the config."""
    deepspeed = meet(me)
    counts = {}
    for way in ("neither", "DeepSpeed's", "torch's"):
        model = gpt2(seed=2)
        calls = []
        model.transformer.h[0].mlp.register_forward_pre_hook(
            lambda *_, calls=calls: calls.append(1)
        )
        block = {"partition_activations": True, "number_checkpoints": 2}
        more = {"activation_checkpointing": block} if way == "DeepSpeed's" else {}
        if way == "torch's":
            new = hasattr(model, "activation_checkpointing_enable")  # from transformers 5.23 on
            enable = f"{'activation' if new else 'gradient'}_checkpointing_enable"
            getattr(model, enable)()
            model.train()
        losses = curve(deepspeed, me, settings(2, **more), model)
        counts[way] = len(calls), losses
    return counts


def test_deepspeeds_checkpointing_does_nothing_for_these_models(pool):
    for counts in parts.run(pool, 2, recomputed):
        assert counts["neither"][0] == counts["DeepSpeed's"][0] == STEPS
        assert counts["torch's"][0] == 2 * STEPS
        for _, losses in counts.values():
            assert losses == pytest.approx(counts["neither"][1], rel=1e-6)


def in_sixteen_bits(me):
    """bf16 trains here, on a float32 copy; fp16 is refused by the device."""
    deepspeed = meet(me)
    found = {}
    for kind in (None, "fp32"):
        more = {"data_types": {"grad_accum_dtype": kind}} if kind else {}
        model = gpt2(seed=2)
        config = settings(2, bf16={"enabled": True}, gradient_accumulation_steps=2, **more)
        added: list[str] = []
        losses = curve(deepspeed, me, config, model, added=added)
        found[kind] = losses, str(model.transformer.wte.weight.dtype), set(added)
    if has_fp16():  # as few CPUs have it
        return found, None
    with pytest.raises(ValueError, match="fp16 is not supported") as caught:
        curve(deepspeed, me, settings(2, fp16={"enabled": True}))
    return found, str(caught.value)


def test_a_cpu_has_bf16_and_no_fp16(pool):
    for found, said in parts.run(pool, 2, in_sixteen_bits):
        for kind, dtype in ((None, "torch.bfloat16"), ("fp32", "torch.float32")):
            losses, of_weights, added = found[kind]
            assert losses[-1] < losses[0] and of_weights == "torch.bfloat16"
            assert added == {dtype}  # in which micro-batches' gradients are summed up
        assert said is None or "Type fp16 is not supported on your device." in said
