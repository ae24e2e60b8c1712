"""The dense decoder alone: what its config refuses, its parts, its start, ties, recomputation.

tests/course_lib/gpt/test_gpt_transformers.py holds the whole model against somebody else's.
"""

from __future__ import annotations

import copy
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from course_lib.gpt import GPT, Cache, Config, RMSNorm

SMALL = {"vocabulary": 37, "length": 11, "hidden": 24, "layers": 2, "heads": 6, "inner": 20}
FAMILIES = {"gpt2": Config.gpt2(**SMALL), "llama": Config.llama(**SMALL, kv_heads=2)}
FAMILY = pytest.mark.parametrize("family", FAMILIES)


def made(config, seed=1, dtype=torch.float64):
    """A model whose every parameter is random: no zero bias, no norm of ones."""
    torch.manual_seed(seed)
    model = GPT(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def some_ids(b=3, s=9, seed=2):
    return torch.randint(37, (b, s), generator=torch.Generator().manual_seed(seed))


def gradients(model, ids):
    """The loss of next tokens and the gradient of each parameter by name."""
    model.zero_grad()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).double(), ids[:, 1:].flatten())
    loss.backward()
    return loss.item(), {name: one.grad.clone() for name, one in model.named_parameters()}


REFUSED = {
    "a misspelt key": ({"hiden": 8}, "no key 'hiden'; did you mean 'hidden'? Its keys: vocabulary"),
    "a foreign key": ({"zzz": 8}, "no key 'zzz'. Its keys"),
    "no layers": ({"layers": 0}, "layers=0 must be an integer of 1 or more"),
    "half a head": ({"heads": 1.5}, "heads=1.5 must be an integer"),
    "a switch for a number": ({"hidden": True}, "hidden=True must be an integer"),
    "a text for a number": ({"inner": "8"}, "inner='8' must be an integer"),
    "no inner": ({"inner": 0}, "inner=0 must be"),
    "no kv heads": ({"kv_heads": 0}, "kv_heads=0 must be"),
    "an unknown norm": ({"norm": "batch"}, "norm='batch' is not among layer, rms"),
    "an unknown position": ({"position": "alibi"}, "'alibi' is not among learned, rotary"),
    "an unknown activation": ({"activation": "relu"}, "is not among gelu, gelu_tanh, swiglu"),
    "all dropped": ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and below 1"),
    "less than none": ({"attention_dropout": -0.1}, "attention_dropout=-0.1 must be at least"),
    "heads that do not divide": (
        {"hidden": 50, "heads": 12},
        "each head would be 4.17 wide. Take hidden as a multiple of 12, such as 60, or one of "
        "these numbers of heads: 2, 5, 10",
    ),
    "queries that do not share out": (
        {"hidden": 24, "heads": 6, "kv_heads": 4},
        "heads=6 cannot be divided among kv_heads=4: each key/value head serves equally many "
        "heads. Take one of 1, 2, 3, 6",
    ),
    "odd heads that turn": (
        {"hidden": 15, "heads": 5, "kv_heads": 5, "position": "rotary"},
        "a head of 15 / 5 = 3 is odd",
    ),
}


WAYS = {
    "read": Config.read,
    "gpt2": lambda keys: Config.gpt2(**keys),
    "changed": lambda keys: Config(hidden=24, heads=6, inner=7).changed(**keys),
}


@pytest.mark.cpu("no tensor is made")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("way", WAYS)
def test_a_config_that_cannot_be_is_refused(name, way):
    keys, says = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(says)):
        WAYS[way](keys)


@pytest.mark.cpu("no tensor is made")
def test_configs_say_what_a_family_is():
    llama = Config.llama(hidden=48, heads=6, kv_heads=2, tied=True)
    assert (llama.position, llama.norm, llama.activation, llama.bias) == (
        "rotary", "rms", "swiglu", False,
    )  # fmt: skip
    assert llama.tied and not Config.llama().tied  # what is said goes before the family
    gpt2 = Config.gpt2()
    assert (gpt2.position, gpt2.norm, gpt2.activation) == ("learned", "layer", "gelu_tanh")
    assert gpt2.bias and gpt2.tied and gpt2.kv_heads == gpt2.heads and gpt2.inner == 4 * 768
    assert llama.inner == 192 and llama.head_size == 8
    assert Config.read(llama.as_dict()) == llama
    wider = llama.changed(hidden=96, dropout=0.1)
    assert (wider.hidden, wider.inner, wider.kv_heads, wider.norm) == (96, 192, 2, "rms")
    with pytest.raises(ValueError, match="no key 'head'; did you mean 'heads'"):
        Config.llama(head=3)


def parameters(config):
    """How many a model of this config has, by the book."""
    h, f, kv = config.hidden, config.inner, config.kv_heads * config.head_size
    gated, bias = config.activation == "swiglu", int(config.bias)
    attention = h * (h + 2 * kv) + h * h + bias * (h + 2 * kv + h)
    mlp = (2 + gated) * h * f + bias * ((1 + gated) * f + h)
    norm = h + h * bias * (config.norm == "layer")
    tables = config.vocabulary * h * (2 - config.tied)
    tables += config.length * h * (config.position == "learned")
    return config.layers * (attention + mlp + 2 * norm) + norm + tables


def test_parameters_are_those_of_published_models():
    tiny = {"length": 2048, "hidden": 2048, "layers": 22, "heads": 32, "kv_heads": 4}
    tiny_llama = Config.llama(vocabulary=32000, inner=5632, **tiny)
    assert parameters(tiny_llama) == 1_100_048_384
    assert parameters(Config.gpt2()) == 124_439_808
    for config in FAMILIES.values():
        for other in (config, config.changed(tied=not config.tied, bias=not config.bias)):
            assert sum(one.numel() for one in GPT(other).parameters()) == parameters(other)


@FAMILY
def test_start(family):
    config = FAMILIES[family].changed(hidden=192, layers=3, inner=160, vocabulary=512, epsilon=1e-6)
    torch.manual_seed(4)
    model = GPT(config)
    for name, one in model.named_parameters():
        if name.endswith("bias"):
            assert not one.any(), name
        elif one.dim() == 1:
            assert torch.equal(one, torch.ones_like(one)), name
        else:
            scale = 0.02 / math.sqrt(6) if name.endswith(("out.weight", "down.weight")) else 0.02
            # The deviation of n normals is known to 1/√(2n) of itself; five of those.
            slack = 5 / math.sqrt(2 * one.numel())
            assert abs(one.std().item() / scale - 1) < slack, name
            assert abs(one.mean().item()) < 5 * scale / math.sqrt(one.numel()), name
    ids = torch.randint(512, (16, 11))
    loss = F.cross_entropy(model(ids).flatten(0, 1), torch.randint(512, (16 * 11,)))
    assert abs(loss.item() - math.log(512)) < 0.1  # knows nothing yet


def test_rms_norm():
    ours, torchs = RMSNorm(10, 0.1).double(), nn.RMSNorm(10, 0.1).double()
    with torch.no_grad():
        torchs.weight.copy_(ours.weight.copy_(torch.randn(10)))
    x = torch.randn(4, 3, 10, dtype=torch.float64)
    torch.testing.assert_close(ours(x), torchs(x), rtol=0, atol=1e-13)
    x = 1e3 * torch.randn(64, 10).bfloat16()
    wide = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 0.1)).bfloat16()
    got = ours.bfloat16()(x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, ours.weight * wide)  # the mean is taken in float32


@FAMILY
def test_a_tied_head_gets_both_gradients_and_stays_tied(family):
    tied = made(FAMILIES[family].changed(tied=True))
    apart = made(FAMILIES[family].changed(tied=False), seed=5)
    apart.load_state_dict(tied.state_dict())
    assert tied.head.weight is tied.tokens.weight
    assert apart.head.weight is not apart.tokens.weight
    assert len(list(apart.parameters())) == len(list(tied.parameters())) + 1
    (_, ours), (_, theirs) = gradients(tied, some_ids()), gradients(apart, some_ids())
    both = theirs.pop("head.weight") + theirs["tokens.weight"]
    torch.testing.assert_close(ours["tokens.weight"], both, rtol=0, atol=1e-10)
    copied = copy.deepcopy(tied)
    copied.load_state_dict({name: one + 1 for name, one in tied.state_dict().items()})
    assert copied.head.weight is copied.tokens.weight is not tied.tokens.weight
    assert torch.equal(copied.head.weight, tied.head.weight + 1)


class Dropouts(TorchFunctionMode):
    """Every dropout that is asked for: what kind, on what shape, with what probability."""

    def __init__(self):
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.dropout:
            self.seen.append(("dropout", tuple(args[0].shape), kwargs["p"], kwargs["training"]))
        if func is F.scaled_dot_product_attention:
            self.seen.append(("attention", tuple(args[0].shape), kwargs["dropout_p"]))
        return func(*args, **kwargs)


@FAMILY
def test_where_dropout_happens(family):
    model = made(FAMILIES[family].changed(dropout=0.2, attention_dropout=0.1))
    on, inside = ("dropout", (3, 9, 24), 0.2), ("attention", (3, 6, 9, 4))
    for training in (True, False):
        model.train(training)
        with Dropouts() as dropouts:
            model(some_ids())
        block = [(*inside, 0.1 if training else 0.0), (*on, training), (*on, training)]
        assert dropouts.seen == [(*on, training), *block, *block]
    without = made(FAMILIES[family])
    without.load_state_dict(model.state_dict())
    assert torch.equal(model(some_ids()), without(some_ids()))


@FAMILY
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputed_is_stored_bit_by_bit(family, dropout):
    check_recomputed("cpu", family, dropout)


def check_recomputed(device, family, dropout):
    config = FAMILIES[family].changed(dropout=dropout, attention_dropout=dropout / 2)
    got, calls, ids = [], [], some_ids().to(device)
    for recompute in (False, True):
        model = made(config.changed(recompute=recompute), dtype=torch.float32).to(device)
        calls.append(0)
        for block in model.blocks:
            block.register_forward_pre_hook(lambda *_: calls.append(calls.pop() + 1))
        torch.manual_seed(7)
        loss, grads = gradients(model, ids)
        got.append((loss, grads, torch.rand(3)))
    assert calls == [2, 4]  # each of the two blocks once more
    (loss, grads, after), (again, regrads, later) = got
    assert loss == again and torch.equal(after, later)
    for name, grad in grads.items():
        assert torch.equal(grad, regrads[name]), name
    with torch.no_grad():
        model(ids)
    assert calls == [2, 6]  # nothing to keep, nothing to run again


@FAMILY
def test_bfloat16_runs_and_is_near(family):
    check_bfloat16("cpu", family)


def check_bfloat16(device, family):
    model, ids = made(FAMILIES[family], dtype=torch.float32).to(device), some_ids().to(device)
    low = copy.deepcopy(model).bfloat16()
    want, got = model(ids), low(ids)
    assert got.dtype == torch.bfloat16
    # 8 bits of each number survive; some ten roundings one after the other lie between.
    assert (got.float() - want).norm() < 16 * 2**-8 * want.norm()
    (loss, grads), (rough, near) = gradients(model, ids), gradients(low, ids)
    assert abs(loss - rough) < 0.05 * loss
    for name, grad in near.items():
        assert grad.dtype == torch.bfloat16
        assert (grad.float() - grads[name]).norm() < 0.15 * grads[name].norm(), name


@FAMILY
def test_a_batch_of_no_row_has_no_logit_and_gradients_of_zero(family):
    config = FAMILIES[family]
    for shape in ((0, 4), (2, 0)):
        model = GPT(config).double()
        logits = model(torch.zeros(shape, dtype=torch.long))
        assert logits.shape == (*shape, config.vocabulary)
        logits.sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@FAMILY
@pytest.mark.parametrize("pieces", [[1] * 9, [4, 3, 2], [9]], ids=["tokens", "pieces", "at-once"])
def test_with_a_cache_pieces_are_the_whole(family, pieces):
    model, ids = made(FAMILIES[family].changed(recompute=True)), some_ids()
    past = [Cache() for _ in model.blocks]
    got = [model(part, past) for part in ids.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(got, dim=1), model(ids), rtol=0, atol=1e-10)
    kv_heads = model.config.kv_heads
    for one in past:
        assert one.length == 9
        assert one.k.shape == one.v.shape == (3, kv_heads, 9, 4)
    with pytest.raises(ValueError, match="of 12 tokens is longer than length=11"):
        model(ids[:, :3], past)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@FAMILY
def test_on_a_gpu(family):
    model, ids = made(FAMILIES[family]), some_ids()
    loss, grads = gradients(model, ids)
    there, regrads = gradients(model.cuda(), ids.cuda())
    assert abs(loss - there) < 1e-10
    for name, grad in grads.items():
        # Cosines in float32 of a GPU and a CPU differ in the last bit.
        slack = 1e-10 if family == "gpt2" else 1e-6
        torch.testing.assert_close(regrads[name].cpu(), grad, rtol=0, atol=slack)
    check_recomputed("cuda", family, 0.3)
    check_bfloat16("cuda", family)
