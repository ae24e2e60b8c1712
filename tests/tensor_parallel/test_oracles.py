"""The cut layers against others' code: DTensor's styles, and the blocks of transformers.

DTensor cuts by torch.chunk and has messages of its own; transformers has its own blocks, whose
weights are put into ours by hand. Nobody's rules but theirs are used on that side.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import ranks
from course_lib.gpt import MLP, Block, Config
from course_lib.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    parallelize,
    shard_mlp,
)
from tests.tensor_parallel.parts import close, held, made, part, randomized

# Their imports take seconds on every rank, so all of this runs on three ranks alone.
WORLD = 3
WIDTHS = [7, 9, 4]  # cut into 3, 3, 1; into 3, 3, 3; into 2, 2 and nothing


def against_dtensor(me):
    """Weights, y and gradients of an MLP that parallelize_module has cut, and of ours."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    for width in WIDTHS:
        config = Config(hidden=6, heads=2, inner=width, activation="gelu")
        dense = randomized(MLP(config).to(me.device), width)
        plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
        theirs = parallelize_module(copy.deepcopy(dense), mesh["tp"], plan)
        ours = shard_mlp(copy.deepcopy(dense), group)
        x = made("x", 4, 6, device=me.device, grad=True)
        mine = x.detach().clone().requires_grad_()
        owed = made("owed", 4, 6, device=me.device)
        want, got = theirs(x), ours(mine)
        close("y", got, want)
        want.backward(owed)
        got.backward(owed)
        close("dX", mine.grad, x.grad)
        placed = dict(theirs.named_parameters())
        for name, p in ours.named_parameters():
            close(name, p, placed[name].to_local())
            grad = placed[name].grad
            close(f"grad of {name}", p.grad, grad.to_local())
        for dim, kind in ((0, ColumnParallelLinear), (1, RowParallelLinear)):
            linear = randomized(nn.Linear(width, width + 3, device=me.device), "one")
            piece = distribute_tensor(linear.weight.detach(), mesh["tp"], [Shard(dim)]).to_local()
            close("a shard", kind.from_dense(linear, group).weight, piece, bound=0.0)


def test_an_mlp_is_cut_as_dtensor_cuts_it(pool):
    pool.run(WORLD, against_dtensor, timeout=90)


def copied_in(ours, theirs):
    """{our parameter: theirs}, q, k and v and gate and up joined by hand."""
    with torch.no_grad():
        for name, p in ours.named_parameters():
            p.copy_(theirs[name])


def gpt2_block(device):
    """(their block, ours in float64 with its weights, where a gradient of ours is in theirs)."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    their_config = GPT2Config(
        n_embd=20, n_head=5, n_inner=13, n_positions=8, attn_pdrop=0, resid_pdrop=0
    )
    their_config._attn_implementation = "eager"
    theirs = randomized(GPT2Block(their_config, layer_idx=0).to(device), "gpt2")
    ours = Block(Config.gpt2(hidden=20, heads=5, inner=13)).double().to(device)

    def joined(of):
        return {
            "norm_1.weight": of(theirs.ln_1.weight),
            "norm_1.bias": of(theirs.ln_1.bias),
            "norm_2.weight": of(theirs.ln_2.weight),
            "norm_2.bias": of(theirs.ln_2.bias),
            "attention.qkv.weight": of(theirs.attn.c_attn.weight).t(),
            "attention.qkv.bias": of(theirs.attn.c_attn.bias),
            "attention.out.weight": of(theirs.attn.c_proj.weight).t(),
            "attention.out.bias": of(theirs.attn.c_proj.bias),
            "mlp.up.weight": of(theirs.mlp.c_fc.weight).t(),
            "mlp.up.bias": of(theirs.mlp.c_fc.bias),
            "mlp.down.weight": of(theirs.mlp.c_proj.weight).t(),
            "mlp.down.bias": of(theirs.mlp.c_proj.bias),
        }

    def run(x):
        mask = torch.full((x.shape[1],) * 2, float("-inf"), dtype=x.dtype, device=device).triu(1)
        out = theirs(x, attention_mask=mask[None, None])
        return out[0] if isinstance(out, tuple) else out

    return run, ours, joined


def llama_block(device):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    their_config = LlamaConfig(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=1,
        intermediate_size=10,
        attention_bias=True,
        mlp_bias=True,
    )
    their_config._attn_implementation = "sdpa"  # the eager one takes softmax in float32
    theirs = randomized(LlamaDecoderLayer(their_config, layer_idx=0).to(device), "llama")
    # Theirs computes norms in float32 whatever comes in; torch's own does it in float64.
    for name in ("input_layernorm", "post_attention_layernorm"):
        norm = nn.RMSNorm(24, eps=1e-5, dtype=torch.float64, device=device)
        norm.weight = getattr(theirs, name).weight
        setattr(theirs, name, norm)
    config = Config.llama(hidden=24, heads=6, kv_heads=1, inner=10, bias=True)
    ours = Block(config).double().to(device)
    rotary = LlamaRotaryEmbedding(their_config).to(device)

    def joined(of):
        attention, mlp = theirs.self_attn, theirs.mlp
        found = {
            "norm_1.weight": of(theirs.input_layernorm.weight),
            "norm_2.weight": of(theirs.post_attention_layernorm.weight),
        }
        for kind in ("weight", "bias"):
            qkv = [of(getattr(getattr(attention, f"{p}_proj"), kind)) for p in "qkv"]
            found[f"attention.qkv.{kind}"] = torch.cat(qkv)
            found[f"attention.out.{kind}"] = of(getattr(attention.o_proj, kind))
            both = [of(getattr(layer, kind)) for layer in (mlp.gate_proj, mlp.up_proj)]
            found[f"mlp.gate_up.{kind}"] = torch.cat(both)
            found[f"mlp.down.{kind}"] = of(getattr(mlp.down_proj, kind))
        return found

    def run(x):
        s = x.shape[1]
        mask = torch.full((s, s), float("-inf"), dtype=x.dtype, device=device).triu(1)
        places = torch.arange(s, device=device)[None]
        out = theirs(x, attention_mask=mask[None, None], position_embeddings=rotary(x, places))
        return out[0] if isinstance(out, tuple) else out

    return run, ours, joined


def against_transformers(me, family):
    pytest.importorskip("transformers")
    run, ours, joined = {"gpt2": gpt2_block, "llama": llama_block}[family](me.device)
    copied_in(ours, joined(lambda p: p.detach()))
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    where = held(ours, lambda twin: parallelize(twin, mesh))
    cut = parallelize(ours, mesh)
    h = cut.norm_1.weight.numel()
    x = made("x", 2, 5, h, device=me.device, grad=True)
    mine = x.detach().clone().requires_grad_()
    owed = made("owed", 2, 5, h, device=me.device)
    want, got = run(x), cut(mine)
    close("y", got, want)
    want.backward(owed)
    got.backward(owed)
    close("dX", mine.grad, x.grad)
    grads = joined(lambda p: p.grad)
    for name, p in cut.named_parameters():
        close(f"grad of {name}", p.grad, part(grads[name].contiguous(), where[name]))
    return sum(i.numel() for i in where.values()), sum(g.numel() for g in grads.values())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_cut_block_is_that_of_transformers(pool, family):
    counts = pool.run(WORLD, against_transformers, family, timeout=90)
    assert all(own < 0.6 * whole for own, whole in counts)
