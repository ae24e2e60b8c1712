"""config.json: what is understood both ways, and every trait that this model lacks, by its name."""

from __future__ import annotations

import json

import pytest
import torch

from course_lib.gpt import Config
from course_lib.pretrained import CheckpointError, from_transformers, read_config, to_transformers
from course_lib.pretrained.config import family
from tests.course_lib.pretrained.parts import GPT2, LLAMA, THREE

# As published: keys that a newer version would add are not in these files.
OLD_GPT2 = {
    "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "layer_norm_epsilon": 1e-05, "vocab_size": 50257, "bos_token_id": 50256,
}  # fmt: skip
OLD_LLAMA = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 5e5,
    "tie_word_embeddings": False, "vocab_size": 32000, "torch_dtype": "float16",
}  # fmt: skip


def test_files_as_they_were_published():
    assert from_transformers(OLD_GPT2) == Config.gpt2(dropout=0.1, attention_dropout=0.1)
    llama = from_transformers(OLD_LLAMA)
    assert llama == Config.llama(
        vocabulary=32000, length=4096, hidden=4096, layers=32, heads=32, kv_heads=8, inner=11008,
        rotary_base=5e5,
    )  # fmt: skip
    older = {k: v for k, v in OLD_LLAMA.items() if k not in ("num_key_value_heads", "rope_theta")}
    assert from_transformers(older) == llama.changed(kv_heads=32, rotary_base=1e4)
    newer = OLD_LLAMA | {"rope_parameters": {"rope_theta": 7e3, "rope_type": "default"}}
    assert from_transformers(newer).rotary_base == 7e3


def test_further_keys_are_kept_and_the_model_has_the_last_word():
    told = to_transformers(
        LLAMA, torch.float32, OLD_LLAMA | {"bos_token_id": 7, "note": "kept", "vocab_size": 5}
    )
    assert (told["bos_token_id"], told["note"], told["vocab_size"]) == (7, "kept", 41)
    assert "torch_dtype" not in told and told["dtype"] == "float32"
    assert to_transformers(LLAMA, torch.float32)["eos_token_id"] is None
    with pytest.raises(CheckpointError, match="a gpt2's, but the saved model is a llama"):
        to_transformers(LLAMA, torch.float32, OLD_GPT2)


REFUSED = [
    (OLD_GPT2, {"model_type": "mistral"}, "model_type='mistral' is not a model of this course"),
    (OLD_GPT2, {"model_type": None}, "model_type=None"),
    (OLD_GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    (OLD_GPT2, {"scale_attn_weights": False}, "Use checkpoints with scale_attn_weights=True"),
    (OLD_GPT2, {"activation_function": "relu"}, "activation_function='relu' is not in gelu_new"),
    (OLD_GPT2, {"embd_pdrop": 0.2}, "resid_pdrop=0.1 and embd_pdrop=0.2 differ"),
    (OLD_LLAMA, {"hidden_act": "gelu"}, "hidden_act='gelu' means an activation other"),
    (OLD_LLAMA, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling=.*linear"),
    (OLD_LLAMA, {"rope_scaling": {"rope_type": "llama3"}}, "with rope_type 'default'"),
    (OLD_LLAMA, {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters=.*yarn"),
    (OLD_LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of each head"),
    (OLD_LLAMA, {"rope_parameters": {"full": {"rope_theta": 2.0}}}, "rope_parameters="),
    (OLD_LLAMA, {"head_dim": 64}, "head_dim=64, but .* 4096 / 32 = 128"),
    (OLD_LLAMA, {"attention_bias": True}, "attention_bias=True and mlp_bias=False differ"),
    (OLD_LLAMA, {"quantization_config": {"bits": 4}}, "Use the original checkpoint"),
    (OLD_LLAMA, {"num_attention_heads": 5}, "does not divide into heads=5"),
]


@pytest.mark.parametrize(("keys", "other", "said"), REFUSED, ids=lambda x: str(x)[:40])
def test_a_trait_that_we_lack_is_refused_by_name(keys, other, said):
    from_transformers(keys)
    with pytest.raises(ValueError, match=said):
        from_transformers(keys | other)


def test_sizes_have_no_default(tmp_path):
    keys = {k: v for k, v in OLD_LLAMA.items() if not k.endswith("_size")}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(CheckpointError, match="lacks vocab_size, hidden_size, intermediate_size"):
        read_config(tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=r"config.json is missing"):
        read_config(tmp_path / "gone" / "config.json")


def test_a_mix_of_both_families_is_neither():
    assert family(GPT2) == "gpt2" and family(THREE) == "llama"
    for config, said in [
        (LLAMA.changed(norm="layer"), r"it differs from llama's in norm='layer' \(there 'rms'\)"),
        (GPT2.changed(bias=False), r"it differs from gpt2's in bias=False \(there True\)"),
        (GPT2.changed(kv_heads=1), r"kv_heads=1 \(there 5\)"),
    ]:
        with pytest.raises(CheckpointError, match=said):
            family(config)
