"""Models that no rank holds whole: HfDeepSpeedConfig, zero.Init, placeholders, generation."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.memory import held
from tests.then_and_now import parts
from tests.then_and_now.parts import gpt2, meet, needs_deepspeed, settings

pytestmark = [needs_deepspeed, pytest.mark.slow]  # lesson 13 runs the first of them too


def loaded(me, folder):
    """from_pretrained without the config object, after it has died, and while it lives."""
    deepspeed = meet(me)
    from transformers import GPT2LMHeadModel
    from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled

    if me.rank == 0:
        gpt2(seed=5).save_pretrained(folder)
    dist.barrier()
    config = settings(3)

    def cut():
        model = GPT2LMHeadModel.from_pretrained(folder)
        return model, hasattr(model.transformer.wte.weight, "ds_id")

    dense, before = cut()
    HfDeepSpeedConfig(config)  # nobody holds it: transformers keeps a weak reference
    gc.collect()
    after = is_deepspeed_zero3_enabled(), cut()[1]
    kept = HfDeepSpeedConfig(config)
    model, with_it = cut()
    assert (before, after, with_it) == (False, (False, False), True)
    # What is seen of a parameter is a placeholder of size 0; the shape is DeepSpeed's to know.
    table, other = model.transformer.wte.weight, dense.transformer.wte.weight
    assert table.shape == (0,) and table.ds_shape == other.shape == (parts.WORDS, 16)
    assert model.state_dict()["transformer.wte.weight"].numel() == 0
    assert held(model).by_kind["parameters"] == 0  # nothing but shards, which no model shows
    whole, shards = {}, []
    for name, parameter in model.named_parameters():
        shards.append(parameter.ds_tensor)
        with deepspeed.zero.GatheredParameters([parameter]):
            whole[name] = parameter.detach().clone()
    assert table.shape == (0,)
    for name, parameter in dense.named_parameters():
        assert torch.equal(whole[name], parameter), name
    total = held(dense).by_kind["parameters"]
    assert total / 2 <= held(shards).total <= total / 2 + 4 * len(shards)
    del kept
    return changed(deepspeed, me, table), built(deepspeed, config)


def changed(deepspeed, me, table):
    """What one rank writes into a gathered parameter stays only where it is named as the writer."""
    sums = []
    for writer, value in ((None, 2.0), (0, 3.0)):
        with deepspeed.zero.GatheredParameters([table], modifier_rank=writer):
            if me.rank == 0:
                table.data.fill_(value)
        with deepspeed.zero.GatheredParameters([table]):
            sums.append(table.sum().item())
    return sums[0] == 2.0 * table.ds_numel, sums[1] == 3.0 * table.ds_numel


def built(deepspeed, config):
    with deepspeed.zero.Init(config_dict_or_path=config):
        layer = nn.Linear(9, 6)
    return tuple(layer.weight.shape), tuple(layer.weight.ds_shape), layer.weight.ds_tensor.numel()


def test_the_config_object_has_to_live_while_a_model_is_loaded(pool, tmp_path):
    for unnamed, named, layer in [
        (*pair, layer) for pair, layer in parts.run(pool, 2, loaded, str(tmp_path))
    ]:
        assert not unnamed and named
        assert layer == ((0,), (6, 9), 27)


def generated(me):
    """Each rank its own prompt and its own length: ranks take equally many forwards."""
    deepspeed = meet(me)
    from transformers.integrations import HfDeepSpeedConfig

    dense = gpt2(seed=5)
    config = settings(3)
    del config["optimizer"]  # ZeRO inference: parameters alone
    alive = HfDeepSpeedConfig(config)
    model = gpt2(seed=5)  # made whole; deepspeed.initialize shards it
    engine = deepspeed.initialize(model=model, config=config)[0]
    engine.module.eval()
    prompt = torch.tensor([[5, 9, 33], [7, 2, 11]])[me.rank : me.rank + 1, : 3 - me.rank]
    length = {"max_new_tokens": 3 + 5 * me.rank, "do_sample": False}
    calls = []
    engine.module.register_forward_hook(lambda *_: calls.append(1))
    words = engine.module.generate(prompt, synced_gpus=True, **length)
    want = dense.eval().generate(prompt, **length)
    engine.destroy()
    del alive
    return words.tolist() == want.tolist(), words.shape[1] - prompt.shape[1], len(calls)


def test_with_synced_gpus_ranks_go_on_until_the_last_has_its_text(pool):
    (same, short, a), (same_too, long, b) = parts.run(pool, 2, generated, timeout=60)
    assert same and same_too
    assert short <= 3 < long <= 8
    assert a == b >= long
