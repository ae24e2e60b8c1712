"""Any Transformers model by shapes alone, beside published sizes and beside real small runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from course_lib.estimate.forward_watch import stacks
from course_lib.estimate.model import Model
from course_lib.estimate.shape import shape_of
from course_lib.estimate.transformers_model import TransformersModel
from course_lib.memory import peak

pytest.importorskip("transformers")

PUBLIC = json.loads(Path(__file__).with_name("public_configs.json").read_text())
LENGTH = 96
SMALL = dict.fromkeys(("hidden_size", "n_embd", "n_embed", "d_model", "word_embed_proj_dim"), 128)
SMALL |= dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"), 3)
SMALL |= dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), 4)
SMALL |= {"intermediate_size": 320, "ffn_dim": 512, "d_ff": 256, "d_kv": 32, "head_dim": 32}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 1000, "sliding_window": 4 * LENGTH}
SMALL |= {"pad_token_id": 0, "query_pre_attn_scalar": 32, "max_window_layers": 3}
PLAIN = {"bos_token_id": 1, "eos_token_id": 2, "attn_pdrop": 0.0}
ALWAYS = ("llama-3.1-8b", "gemma-2-9b", "mixtral-8x7b", "bloom-7b1")


def small(name: str, **more) -> dict:
    """The same architecture with a thousandth of the sizes, without attention's dropout, for which
    a CPU has no fused kernel."""
    keys = {key: SMALL.get(key, value) for key, value in PUBLIC[name]["config"].items()}
    keys |= {key: value for key, value in PLAIN.items() if key != "attn_pdrop" or "n_embd" in keys}
    return keys | ({"dropout_rate": 0.0} if keys["model_type"] == "t5" else {}) | more


def test_parameters_are_the_published_ones():
    counted = {name: Model(one["config"]).shape.params for name, one in PUBLIC.items()}
    assert counted == {name: one["params"] for name, one in PUBLIC.items()}
    assert Model(PUBLIC["t0-3b"]["config"]).shape.largest_layer == 65798144  # as documented
    for name in ("gpt2-xl", "llama-3.1-8b"):  # read as our decoder's, without Transformers
        model = Model(PUBLIC[name]["config"])
        assert model.shape == shape_of(model.theirs().model)


def really_kept(model: TransformersModel, rows: int) -> tuple[list[int], int]:
    """(bytes of each block, all bytes) that a real forward on the CPU keeps."""
    torch.manual_seed(0)
    config = copy.deepcopy(model.model.config)
    fused = config._attn_implementation not in ("sdpa", "eager")
    how = {"attn_implementation": "sdpa" if fused else config._attn_implementation}
    real = type(model.model)._from_config(config, dtype=model.dtype, **how).train()
    known = {x.untyped_storage().data_ptr() for x in [*real.parameters(), *real.buffers()]}
    held, where, found = [], [None], {}

    def keep(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            held.append(x)
            found[where[0]] = found.get(where[0], 0) + storage.nbytes()
        return x

    blocks = [block for stack in stacks(real) for block in stack]
    for i, block in enumerate(blocks):
        block.register_forward_pre_hook(lambda *_, i=i: where.__setitem__(0, i))
        block.register_forward_hook(lambda *_: where.__setitem__(0, None))
    ids = torch.randint(3, 1000, (rows, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        real(input_ids=ids, labels=ids, use_cache=False)
    return [found.get(i, 0) for i in range(len(blocks))], sum(found.values())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ALWAYS else pytest.mark.slow) for n in PUBLIC]
)
def test_a_forward_keeps_what_a_real_one_keeps(name):
    model = TransformersModel(small(name), name)
    counted = model.kept(3, LENGTH)
    blocks, total = really_kept(model, 3)
    assert counted.blocks[-1] == pytest.approx(blocks[-1], rel=0.05)
    assert counted.total == pytest.approx(total, rel=0.05)
    if name in ALWAYS:
        assert counted.total == pytest.approx(total, abs=64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_peak_is_that_of_a_backward(dtype, recompute):
    """By the meter, where the loss is the highest point: none of the gradients is there yet."""
    model = TransformersModel(small("qwen3-8b", vocab_size=8000), "qwen3-8b", dtype)
    config = copy.deepcopy(model.model.config)
    real = type(model.model)._from_config(config, attn_implementation="sdpa", dtype=dtype).train()
    if recompute:
        real.gradient_checkpointing_enable()
    ids = torch.randint(3, 1000, (4, LENGTH))
    with peak(device="cpu") as measured:
        real(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    estimate = model.kept(4, LENGTH, recompute=recompute).peak
    assert estimate == pytest.approx(measured.bytes, rel=0.02)


def test_ranks_of_tensor_parallelism_keep_what_a_narrower_model_keeps():
    """Half of the heads, of the inner width and of the vocabulary, and all of the hidden size."""
    keys = small("llama-3.1-8b")
    halves = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    half = TransformersModel(keys | {key: keys[key] // 2 for key in halves} | {"head_dim": 32}, "")
    whole = TransformersModel(keys | {"head_dim": 32}, "")
    one, two = half.kept(2, LENGTH), whole.kept(2, LENGTH, tp=2)
    assert one.blocks == two.blocks and one.loss == two.loss
    assert two.ends == pytest.approx(one.ends, rel=0.02)
    assert whole.params_of_rank(2) == sum(p.numel() for p in half.model.parameters())
    own = whole.kept(2, LENGTH, tp=2, sequence=True)
    assert own.entry * 2 == two.entry and max(own.blocks) < max(two.blocks)


def test_a_block_that_is_run_again_leaves_its_input():
    model = TransformersModel(small("gpt-neox-20b"), "")
    plain, again = (model.kept(2, LENGTH, recompute=recompute) for recompute in (False, True))
    assert plain.total - again.total == sum(plain.blocks) - 3 * plain.entry
    assert again.entry == 2 * LENGTH * 128 * 2


def test_of_experts_a_token_meets_its_own():
    model = TransformersModel(PUBLIC["mixtral-8x7b"]["config"], "")
    assert model.product_params() == pytest.approx(12.8e9, rel=0.01)  # active, less the table
    assert model.attention_width == 32 * 4096


def test_what_cannot_be_counted_says_why(monkeypatch):
    with pytest.raises(ValueError, match=r"config.json: .* model_type='no such'"):
        Model({"model_type": "no such"})
    model = Model(small("mistral-7b"))
    monkeypatch.setattr(TransformersModel, "kept", lambda *_, **__: 1 // 0)
    assert "does not run without data (integer division" in model.activations_unknown
    assert model.kept(1, 16, torch.bfloat16) is None


def test_a_config_that_our_decoder_refuses_is_counted_all_the_same():
    """How positions are scaled, how weights are stored and unequal dropouts change no shape."""
    scaled = Model(PUBLIC["llama-3.2-1b"]["config"] | {"quantization_config": {"bits": 4}})
    assert scaled.config is not None and scaled.longest == 131072
    odd = Model(PUBLIC["gpt2-xl"]["config"] | {"resid_pdrop": 0.3})
    assert odd.config is None and odd.shape.params == PUBLIC["gpt2-xl"]["params"]
