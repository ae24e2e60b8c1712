"""The dense decoder against transformers' GPT-2 and Llama: logits and every gradient, in float64.

The weights are random and come by a checkpoint; tests/course_lib/pretrained holds how one is read.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.gpt import Config
from course_lib.pretrained import from_pretrained

SIZES = {"vocabulary": 41, "length": 13, "hidden": 24, "layers": 2, "heads": 6, "inner": 20}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


def stirred(model, seed=1):
    """Every parameter random, so that no bias is zero and no norm is one."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.3 * torch.randn_like(one))
    return model.double().eval()


def gpt2(transformers, config):
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocabulary, n_positions=config.length, n_embd=config.hidden,
            n_layer=config.layers, n_head=config.heads, n_inner=config.inner,
            activation_function="gelu_new" if config.activation == "gelu_tanh" else "gelu",
            layer_norm_epsilon=config.epsilon, tie_word_embeddings=config.tied,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def llama(transformers, config):
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocabulary, max_position_embeddings=config.length,
            hidden_size=config.hidden, num_hidden_layers=config.layers,
            num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
            intermediate_size=config.inner, rms_norm_eps=config.epsilon,
            rope_theta=config.rotary_base, tie_word_embeddings=config.tied,
            attention_bias=config.bias, mlp_bias=config.bias,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    d = config.head_size  # a base that was not taken up would be compared with itself
    turns = config.rotary_base ** -(torch.arange(0, d, 2).double() / d)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq.double(), turns, rtol=1e-6, atol=0)
    return model


def in_float64(model):
    """Llama's RMSNorm works in float32 whatever comes; torch's own keeps to its input's dtype."""
    for name, inner in list(model.named_modules()):
        if type(inner).__name__ == "LlamaRMSNorm":
            norm = nn.RMSNorm(inner.weight.shape[0], inner.variance_epsilon).double()
            norm.weight = inner.weight
            model.set_submodule(name, norm)
    return model


def ours_like(theirs, folder):
    """Our model with their weights, read from their checkpoint."""
    theirs.save_pretrained(folder)
    return from_pretrained(folder)


def compared(theirs, config, folder):
    """(largest difference of the logits, of each gradient by name) of one step on random tokens."""
    ours = ours_like(theirs, folder / "weights")
    assert ours.config == config
    ids = torch.randint(config.vocabulary, (3, config.length))
    logits, want = ours(ids), theirs(input_ids=ids, use_cache=False).logits
    for one in (logits, want):
        loss = F.cross_entropy(one[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
    with torch.no_grad():  # their gradients go the way of weights, so that they get our names
        for one in theirs.parameters():
            one.copy_(one.grad)
    expected = dict(ours_like(theirs, folder / "gradients").named_parameters())
    gradients = {name: one.grad for name, one in ours.named_parameters()}
    assert gradients.keys() == expected.keys()
    assert want.std() > 0.1 and all(one.abs().max() > 1e-5 for one in expected.values())
    assert logits.shape == want.shape
    off = {name: (one - expected[name]).abs().max().item() for name, one in gradients.items()}
    return (logits - want).abs().max().item(), off


@pytest.mark.parametrize(
    ("family", "traits"),
    [
        (gpt2, {}),
        (gpt2, {"tied": False, "epsilon": 1e-3}),
        (gpt2, {"activation": "gelu", "heads": 3}),
        (llama, {"kv_heads": 2}),
        (llama, {"kv_heads": 1, "tied": True, "rotary_base": 500.0}),
        (llama, {"bias": True, "epsilon": 1e-3}),
    ],
)
def test_logits_and_gradients_are_those_of_transformers(transformers, family, traits, tmp_path):
    # Both take cosines and sines in float32 and widen them then, so float64 shows no trace of it.
    config = getattr(Config, family.__name__)(**{**SIZES, **traits})
    theirs = in_float64(stirred(family(transformers, config)))
    logits, gradients = compared(theirs, config, tmp_path)
    assert logits < 1e-10
    assert max(gradients.values()) < 1e-10, gradients


def test_llama_with_its_own_norm(transformers, tmp_path):
    """Untouched, with norms in float32: nearer than ten float32 roundings of the largest logit."""
    config = Config.llama(**SIZES, kv_heads=3)
    theirs = stirred(llama(transformers, config))
    ours = ours_like(theirs, tmp_path)
    ids = torch.randint(config.vocabulary, (3, config.length))
    with torch.no_grad():
        logits, want = ours(ids), theirs(input_ids=ids, use_cache=False).logits
    off = (logits - want).abs().max()
    assert 0 < off < 10 * torch.finfo(torch.float32).eps * want.abs().max()
