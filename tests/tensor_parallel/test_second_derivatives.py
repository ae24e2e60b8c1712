"""Second derivatives of a cut model against the dense one's: none is wrong, and none is dropped.

With create_graph=True a gradient is a function again. Its own gradient is held against the dense
model's in float64: the Hessian times a vector, and third derivatives.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib import collectives, ranks
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import ColumnParallelLinear, RowParallelLinear, parallelize
from course_lib.tensor_parallel.conjugates import reduce
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from course_lib.tensor_parallel.sequence import gathered_products, scattered_product
from tests.tensor_parallel.parts import chunks, close, held, made, own, part, randomized, said

WORLDS = [1, 2, 3]


def hessian_times(loss, inputs, vectors):
    """The gradient, then the Hessian times the vectors."""
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    how = {"allow_unused": True, "materialize_grads": True}
    return [*first, *torch.autograd.grad(first, inputs, vectors, **how)]


def layers(me):
    """A column and a row layer, alone and in a row; inputs that are whole, split and uneven."""
    group = dist.group.WORLD
    for inputs, inner, outputs in ((5, 7, 3), (2, 2, 2)):
        up = randomized(nn.Linear(inputs, inner), ("up", inner))
        down = randomized(nn.Linear(inner, outputs), ("down", inner))
        x, z = made("x", 2, 3, inputs), made("z", 2, 3, inner)
        whole = ColumnParallelLinear.from_dense(up, group, gather_output=True)
        rows = RowParallelLinear.from_dense(down, group, split_input=True)
        columns = ColumnParallelLinear.from_dense(up, group)
        pair = nn.Sequential(columns, nn.Tanh(), RowParallelLinear.from_dense(down, group))
        for cut, dense, given, dims in (
            (whole, up, x, [None, 0, 0]),
            (rows, down, z, [None, 1, None]),
            (pair, nn.Sequential(up, nn.Tanh(), down), x, [None, 0, 0, 1, None]),
        ):
            for power in (1, 3):  # of the first, the gradient that comes in is a constant
                want = of_layers(dense, given, power, lambda v, dim: v, dims)
                got = of_layers(
                    cut, given, power, lambda v, dim: held_part(v, group, dim), dims, want
                )
                for dim, mine, all_of in zip(dims * 2, got, want, strict=True):
                    close(f"{dims}, power {power}", mine, held_part(all_of, group, dim))


def of_layers(model, x, power, take, dims, like=None):
    x = x.detach().clone().requires_grad_()
    every = [x, *model.parameters()]
    shapes = [t.shape for t in (like or every)][: len(every)]
    vectors = [
        take(made(("v", i), *s), dim) for i, (s, dim) in enumerate(zip(shapes, dims, strict=True))
    ]
    return hessian_times(model(x).pow(power).sum(), every, vectors)


def held_part(whole, group, dim):
    return whole if dim is None else own(whole, group, dim)


@pytest.mark.parametrize("world", WORLDS)
def test_the_hessian_of_cut_layers_times_a_vector_is_the_dense_ones(pool, world):
    pool.run(world, layers)


def tokens_cut(me, keep):
    """Products that gather and scatter tokens: X known in parts, the bias added by every rank."""
    group = dist.group.WORLD
    for s in (5, 1):
        shapes = [(2, s, 4), (6, 4), (6,), (3, 6), (3,)]
        inputs, vectors = ([made((n, i), *z) for i, z in enumerate(shapes)] for n in "xv")
        dims, sizes = [1, 0, 0, 1, None], chunks(s, me.world)

        def dense(x, w, b, v, c):
            return F.linear(torch.tanh(F.linear(x, w, b)), v, c).pow(3).sum()

        def cut(x, w, b, v, c, sizes=sizes):
            (y,) = gathered_products(x, [w], [b], group, sizes, keep=keep)
            y = scattered_product(torch.tanh(y), v, c, group, sizes)
            return reduce(y.pow(3).sum(), group)

        found = []
        for function, each in ((dense, [None] * 5), (cut, dims)):
            mine = [held_part(t, group, dim) for t, dim in zip(inputs, each, strict=True)]
            mine = [t.detach().clone().requires_grad_() for t in mine]
            along = [held_part(t, group, dim) for t, dim in zip(vectors, each, strict=True)]
            found.append(hessian_times(function(*mine), mine, along))
        for dim, whole, part_of in zip(dims * 2, *found, strict=True):
            close(f"{s} tokens, {dim}", part_of, held_part(whole, group, dim))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_the_hessian_through_gathered_tokens_times_a_vector_is_the_dense_ones(pool, world, keep):
    pool.run(world, tokens_cut, keep)


def losses(me):
    """Hessian times vector, and the third derivative, of the loss in the logits and in the head."""
    for vocabulary, padded in ((11, 11), (3, 4)):
        for smoothing, weighted in ((0.0, False), (0.3, True)):
            one_loss(dist.group.WORLD, vocabulary, padded, smoothing, weighted)
    one_loss(dist.group.WORLD, 10, 20, 0.2, False)


def one_loss(group, vocabulary, padded, smoothing, weighted):
    label = f"{vocabulary} in {padded}, smoothing={smoothing}, weighted={weighted}"
    weight = made("w", vocabulary).abs() if weighted else None
    targets = made("ids", 6).argsort() % vocabulary
    targets[1], targets[2] = 0, -100
    how = {"label_smoothing": smoothing}
    more = {"vocabulary": vocabulary, "padded": padded, **how}

    # Squared, so that what comes back to the loss is a function of the logits as well.
    def dense(z):
        return F.cross_entropy(z[..., :vocabulary], targets, weight=weight, **how).square()

    def cut(z):
        return cross_entropy(z, targets, group, weight=weight, **more).square()

    def fused(x, w):
        return head_cross_entropy(x, w, targets, group, class_weight=weight, **more).square()

    logits, v, u = (made(name, 6, padded) for name in ("logits", "v", "u"))
    if not smoothing:
        logits[1, vocabulary - 1] = -torch.inf  # ruled out
    wild = logits.clone()
    wild[2] = -torch.inf  # nobody asks for this token's loss
    want = thrice(dense, [logits], [v], [u])
    got = thrice(cut, [own(wild, group)], [own(v, group)], [own(u, group)])
    for mine, whole in zip(got, want, strict=True):
        close(label, mine, own(whole, group))
    states, heads = made("states", 6, 4), made("head", padded, 4)
    a, b = made("a", 6, 4), made("b", padded, 4)
    want = thrice(lambda x, w: dense(x @ w.t()), [states, heads], [a, b], [2 * a, b])
    b = own(b, group, 0)
    got = thrice(fused, [states, own(heads, group, 0)], [a, b], [2 * a, b])
    for i, (mine, whole) in enumerate(zip(got, want, strict=True)):
        close(f"fused: {label}", mine, own(whole, group, 0) if i % 2 else whole)


def thrice(function, inputs, v, u):
    """The gradient, the Hessian times v, and the gradient of that times u."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    first = torch.autograd.grad(function(*inputs), inputs, create_graph=True)
    second = torch.autograd.grad(first, inputs, v, create_graph=True)
    return [*first, *second, *torch.autograd.grad(second, inputs, u)]


@pytest.mark.parametrize("world", WORLDS)
def test_hessian_and_third_derivative_of_the_loss_are_the_dense_ones(pool, world):
    pool.run(world, losses)


GPT2 = {"vocabulary": 13, "hidden": 8, "layers": 2, "heads": 4, "length": 7}
LLAMA = {**GPT2, "kv_heads": 2, "norm": "rms", "activation": "swiglu", "position": "rotary"}
MODELS = {
    "gpt2": (GPT2, {}),
    "gpt2 sequence": (GPT2, {"sequence": True}),
    "llama": ({**LLAMA, "bias": False, "tied": False}, {}),
    "llama lean": ({**LLAMA, "tied": False}, {"sequence": True, "keep": False}),
    "recomputed": ({**GPT2, "recompute": True}, {"sequence": True}),
}


def hessian(me, which):
    """The Hessian of a GPT's loss in all its parameters times a vector, the dense model's and ours.

    Each rank brings its part of the vector, as it holds its part of the parameters.
    """
    config, plan = MODELS[which]
    config = Config(**{**config, "heads": 6, "hidden": 12} if me.world == 3 else config)
    if me.world == 3 and config.kv_heads == 2:
        config = Config(**{**vars(config), "kv_heads": 1})
    dense = randomized(GPT(config), which)
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    where = held(dense, lambda model: parallelize(model, mesh, **plan))
    cut = parallelize(copy.deepcopy(dense), mesh, **plan)
    ids, targets = (made(name, 2, 5).abs().mul(1e4).long() % 13 for name in ("ids", "targets"))
    vector = {name: made(("v", name), *p.shape) for name, p in dense.named_parameters()}

    def of_dense():
        return F.cross_entropy(dense(ids).flatten(0, 1), targets.flatten())

    def of_cut():
        return cross_entropy(cut(ids), targets, dist.group.WORLD, vocabulary=13)

    want = product(of_dense, dense, vector)
    vector = {name: part(vector[name], index) for name, index in where.items()}
    got = product(of_cut, cut, vector)
    assert me.world == 1 or any(i.numel() < vars_of(dense)[n].numel() for n, i in where.items())
    for name, index in where.items():
        close(f"{which}: {name}", got[name], part(want[name], index))
    assert any(want[name].abs().max() > 1e-3 for name in want)


def vars_of(model):
    return dict(model.named_parameters())


def product(loss, model, vector):
    named = vars_of(model)
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative, in torch
        first = torch.autograd.grad(loss(), list(named.values()), create_graph=True)
        order = [vector[name] for name in named]
        second = torch.autograd.grad(first, list(named.values()), order)
    return dict(zip(named, second, strict=True))


@pytest.mark.parametrize(
    ("world", "which"),
    [(1, "gpt2"), *((2, which) for which in MODELS), (3, "gpt2 sequence"), (3, "llama")],
)
def test_the_hessian_of_a_gpt_times_a_vector_is_the_dense_ones(pool, world, which):
    pool.run(world, hessian, which)


def other_modes(me):
    """torch.func and forward mode: refused on all ranks alike, and no tangent is lost."""
    group, x = dist.group.WORLD, made("x", 3, 4)
    layer = ColumnParallelLinear.from_dense(nn.Linear(4, 6).double(), group)
    targets = torch.arange(3)
    logits = own(made("logits", 3, 7), group)

    def loss(z):
        return cross_entropy(z, targets, group, vocabulary=7)

    found = [
        said(RuntimeError, torch.func.grad(lambda x: layer(x).sum()), x),
        said(RuntimeError, torch.func.jvp, layer, (x,), (x,)),
        said(RuntimeError, torch.func.vmap(layer), x),
        said(RuntimeError, torch.func.grad(loss), logits),
    ]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        found.append(said(RuntimeError, layer, dual))
        found.append(said(RuntimeError, collectives.all_reduce, dual, group))
        found.append(said(RuntimeError, loss, forward_ad.make_dual(logits, logits)))
        assert collectives.all_reduce(x, group).shape == x.shape
    return found


def test_other_modes_of_differentiation_are_refused_by_name(pool):
    for found in pool.run(2, other_modes):
        assert all("torch.func (grad, vjp, jvp, vmap" in text for text in found[:4])
        assert all("create_graph=True" in text for text in found[:5])
        assert "forward mode (torch.autograd.forward_ad)" in found[4]
        assert "this tensor carries a tangent" in found[5]
        assert "forward" in found[6]
