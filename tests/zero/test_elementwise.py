"""Which optimizers an engine takes: torch's own by name, all others by a trial on twins."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from course_lib.zero.elementwise import ELEMENTWISE, TORCH_OTHERS, check_elementwise
from course_lib.zero.twin import LARGEST, twin_of
from tests.tensor_parallel.parts import said
from tests.zero import odd_optimizers as odd
from tests.zero.parts import Case, engine_of, made_for, train

NAMED = [*sorted(ELEMENTWISE), *TORCH_OTHERS]  # a set has no order, and workers need one
OPTIONS = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True},
    "foreach": {"foreach": True},
    "one by one": {"foreach": False},
    "capturable": {"capturable": True},
    "differentiable": {"differentiable": True},
    "fused": {"fused": True},
    "amsgrad": {"amsgrad": True},
    "centered": {"centered": True, "momentum": 0.5},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "begun": {"initial_accumulator_value": 0.3},
    "lr 0": {"lr": 0.0},
    "lr in a tensor": {"lr": torch.tensor(0.1), "foreach": False},
}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    return [
        nn.Parameter(torch.randn(*shape, generator=generator)) for shape in ((6, 4), (7,), (3, 5))
    ]


def of_torch(name: str) -> dict[str, torch.optim.Optimizer]:
    """An optimizer for each of the options that it has."""
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    found = {}
    for option, more in OPTIONS.items():
        own = parameters() if name != "Muon" else parameters()[::2]
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # it has no such option
            found[option] = getattr(torch.optim, name)(own, **more)
    assert "plain" in found
    return found


@pytest.mark.cpu("names of torch")
def test_every_optimizer_of_torch_is_known():
    every = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert every - {"Optimizer"} <= set(NAMED), "a new one: say whether it is elementwise"


@pytest.mark.parametrize("name", NAMED)
def test_torchs_own_are_answered_by_name(name, monkeypatch):
    options = of_torch(name)
    monkeypatch.setattr(getattr(torch.optim, name), "step", None)  # nothing is tried
    for optimizer in options.values():
        if name in ELEMENTWISE:
            check_elementwise(optimizer)
            continue
        message = said(ValueError, check_elementwise, optimizer)
        assert message.startswith(f"{name} updates a shard otherwise than the whole: it ")
        assert TORCH_OTHERS[name] in message and "or stage 0, which cuts nothing" in message


def by_stage(me):
    """Each of torch's at each stage: trained, or refused before anything is cut."""
    for name in NAMED:
        if not hasattr(torch.optim, name):
            continue
        for stage in range(4):
            case = Case(stage=stage, steps=1, dtype=torch.float32)
            model = made_for(case)
            own = [p for p in model.parameters() if name != "Muon" or p.dim() == 2]
            if name == "Muon":
                for p in model.parameters():
                    p.requires_grad_(p.dim() == 2)
            optimizer = getattr(torch.optim, name)(own)
            if stage and name in TORCH_OTHERS:
                before = [p.detach().clone() for p in model.parameters()]
                reason = said(ValueError, engine_of, me, case, model, optimizer)
                # These two no stage can train, which is said first.
                first = {"LBFGS": "by a closure", "SparseAdam": "takes sparse gradients"}
                assert first.get(name, TORCH_OTHERS[name]) in reason
                assert all(map(torch.equal, model.parameters(), before))
            elif name not in ("LBFGS", "SparseAdam"):  # which want a closure, sparse gradients
                train(me, case, engine_of(me, case, model, optimizer))


def test_torchs_own_at_every_stage(pool):
    pool.run(2, by_stage, timeout=120)


NOT = [
    *(
        "GlobalNorm",
        "Distance",
        "Tiny",
        "TrustRatio",
        "EveryFifth",
        "EveryTwelfth",
        "FactoredAbove",
    ),
    *("NormAbove", "Biggest", "RowMean", "Kernels", "TopK", "SignOfMean", "CountsParameters"),
    *("NumbersParameters", "Noise", "Coin", "OwnNoise", "SkipsZeros", "ClipsWhatIsLarge", "Blocks"),
]


@pytest.mark.parametrize("name", NOT)
def test_what_looks_at_more_than_one_element_is_refused(name):
    message = said(ValueError, check_elementwise, getattr(odd, name)(parameters()))
    assert message.startswith(f"{name} updates a shard otherwise than the whole, by step ")
    assert "it looks at more than one number at a time" in message
    assert "Use an elementwise one, such as SGD, Adam or AdamW, or stage 0" in message


SIZES = [(k, False) for k in (1, 100, 1_000, 12_345, 35_000)]
SIZES += [(k, True) for k in (1, 100, 1_000, 16_000)]


@pytest.mark.parametrize(("above", "rows"), SIZES)
def test_what_asks_how_large_a_parameter_is_is_refused(above, rows):
    """Though each element's update is its own: a shard has fewer elements, and no rows."""
    message = said(ValueError, check_elementwise, odd.Above(parameters(), above, rows))
    assert message.startswith("Above updates a shard otherwise than the whole, by step 1 of ")
    assert "how large a parameter is" in message


def test_groups_that_look_at_each_other_are_refused():
    a, b, c = parameters()
    for more in ({}, {"weight_decay": 0.1}):
        optimizer = odd.OtherGroups([{"params": [a, b]}, {"params": [c], **more}])
        assert "updates a shard otherwise" in said(ValueError, check_elementwise, optimizer)


def test_a_trial_says_what_it_could_not_see():
    message = said(ValueError, check_elementwise, odd.Rests(parameters()))
    assert "changed no weight in 12 steps of a trial" in message and "first steps" in message
    message = said(ValueError, check_elementwise, odd.Raises(parameters()))
    assert "does not step on a shard (" in message
    assert "cannot see what begins after step 12" in " ".join(check_elementwise.__doc__.split())


def renamed(name: str) -> type:
    return type(name, (odd.Base,), {"__module__": "elsewhere"})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Prodigy", "sums over all parameters"),
        ("DAdaptAdam", "sums over all parameters"),
        ("LAMB", "that parameter's norm"),
        ("FusedLAMB", "that parameter's norm"),
        ("LARS", "that parameter's norm"),
        ("Shampoo", "preconditioners"),
        ("DistributedShampoo", "preconditioners"),
        ("SOAP", "preconditioners"),
        ("MuonWithAuxAdam", "orthogonalizes"),
        ("Adafactor", "rows and columns"),
        ("CAME", "rows and columns"),
        ("Adam8bit", "quantizes"),
        ("PagedAdamW8bit", "quantizes"),
        ("GaLoreAdamW", "directions"),
        ("ZeroRedundancyOptimizer", "itself"),
    ],
)
def test_others_are_refused_by_name(name, words):
    """Though as they are made here, they pass a trial."""
    message = said(ValueError, check_elementwise, renamed(name)(parameters()))
    assert message.startswith(f"{name} updates a shard otherwise") and words in message
    below = type("Own", (renamed(name),), {})
    assert words in said(ValueError, check_elementwise, below(parameters()))


def test_bitsandbytes_is_refused_for_its_bits_and_not_for_the_name_of_its_base():
    """All of its classes come from one that is named `Optimizer8bit`, those in 32 bits too."""
    base = renamed("Optimizer8bit")
    for bits in (None, 32, 8):
        optimizer = type("AdamW", (base,), {})(parameters())
        if bits is not None:
            optimizer.args = SimpleNamespace(optim_bits=bits, min_8bit_size=1 << 20)
        if bits == 8:
            assert "quantizes" in said(ValueError, check_elementwise, optimizer)
        else:
            check_elementwise(optimizer)
    below = type("AdamW8bit", (base,), {})
    assert "quantizes" in said(ValueError, check_elementwise, below(parameters()))


def test_a_subclass_of_torchs_own_is_tried():
    class Muon(torch.optim.SGD):
        """Elementwise, whatever its name says."""

    class Vectors(torch.optim.Adafactor):
        def step(self, closure=None):
            return torch.optim.SGD.step(self)

    class AdamW(torch.optim.AdamW):
        def step(self, closure=None):
            for group in self.param_groups:
                nn.utils.clip_grad_norm_(group["params"], 1.0)
            return super().step(closure)

    assert "orthogonalizes" in said(ValueError, check_elementwise, Muon(parameters(), lr=0.1))
    assert "does not step" in said(ValueError, check_elementwise, Vectors(parameters()))
    assert "updates a shard" in said(ValueError, check_elementwise, AdamW(parameters()))


ARE = {
    "Lion": odd.Lion,
    "OwnAdamW": odd.OwnAdamW,
    "OwnAdamW amsgrad": lambda p: odd.OwnAdamW(p, amsgrad=True, maximize=True),
    "OwnAdamW fused": lambda p: odd.OwnAdamW(p, fused=True, weight_decay=0.3),
    "OwnAdamW foreach": lambda p: odd.OwnAdamW(p, lr=torch.tensor(0.01), foreach=False),
    "Clipping": lambda p: odd.Clipping(p, lr=0.1, momentum=0.9, nesterov=True),
    "Counts": odd.Counts,
    "EveryFifthDecays": odd.EveryFifthDecays,
    "Table": odd.Table,
    "GroupCounts": odd.GroupCounts,
    "WithStates": odd.WithStates,
    "Lookahead": lambda p: odd.Lookahead(torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "NoEpsilon": odd.NoEpsilon,
    "DecaysAlone": odd.DecaysAlone,
    "EpochOfHooks": odd.EpochOfHooks,
    "lr 0": lambda p: odd.Counts(p, lr=0.0),
    "one group of nothing": lambda p: odd.Lion([{"params": p}, {"params": []}]),
    "a group each": lambda p: odd.Lion([{"params": [q], "lr": 1.0} for q in p]),
}


def contents(optimizer) -> str:
    """All that an optimizer holds, its groups, states and own attributes, as text."""
    return repr({name: value for name, value in vars(optimizer).items() if name != "generator"})


@pytest.mark.parametrize("name", ARE)
def test_elementwise_optimizers_pass_and_stay_as_they_were(name):
    own = parameters()
    optimizer = ARE[name](own)
    before, weights = contents(optimizer), [p.detach().clone() for p in own]
    drawn = torch.get_rng_state(), random.getstate()
    check_elementwise(optimizer)
    assert contents(optimizer) == before
    assert all(map(torch.equal, own, weights)) and all(p.grad is None for p in own)
    assert torch.equal(torch.get_rng_state(), drawn[0]) and random.getstate() == drawn[1]


@pytest.mark.parametrize("name", ["Noise", "Coin", "OwnNoise", "Table", "CountsParameters"])
def test_a_refused_optimizer_stays_as_it_was_too(name):
    optimizer = getattr(odd, name)(parameters())
    before, drawn = contents(optimizer), (torch.get_rng_state(), random.getstate())
    generator = getattr(optimizer, "generator", torch.default_generator).get_state()
    if name != "Table":
        said(ValueError, check_elementwise, optimizer)
    assert contents(optimizer) == before and not optimizer.state
    assert torch.equal(torch.get_rng_state(), drawn[0]) and random.getstate() == drawn[1]
    now = getattr(optimizer, "generator", torch.default_generator).get_state()
    assert torch.equal(now, generator)


def test_a_large_tensor_beside_the_states_is_refused():
    optimizer = odd.Lion(parameters())
    optimizer.average = [torch.zeros(LARGEST + 1)]
    message = said(ValueError, check_elementwise, optimizer)
    assert f"its attribute average holds a tensor of {LARGEST + 1:,} elements" in message


def test_a_twin_shares_what_python_cannot_copy_and_nothing_else():
    own = parameters()
    optimizer = odd.Table(own)
    optimizer.lock, optimizer.others = threading.Lock(), [optimizer.param_groups, own]
    [group] = optimizer.param_groups
    stand_in = nn.Parameter(torch.ones(2))
    twin = twin_of(optimizer, [group], [[stand_in]])
    assert twin.lock is optimizer.lock
    assert twin.others[0] is twin.param_groups and twin.table is not optimizer.table
    assert twin.param_groups[0]["params"][0] is stand_in
    assert all(p.numel() == 0 for p in twin.others[1])


def test_many_groups_are_tried_in_bounded_time_and_leave_nothing():
    """Two hundred groups, of which the one that differs in more than a number is among those tried,
    wherever it stands."""
    own = [nn.Parameter(torch.ones(2)) for _ in range(200)]
    groups = [{"params": [p], "weight_decay": 0.1 + i} for i, p in enumerate(own)]
    check_elementwise(odd.Lion(groups))
    gc.collect()
    held = [x for x in gc.get_objects() if type(x) is nn.Parameter and x.numel() == 20_000]
    assert not held
    groups[150]["rows"] = True

    class Rows(odd.Base):
        def direction(self, p, group):
            return p.grad / p.grad.norm() if group.get("rows") else p.grad

    assert "updates a shard" in said(ValueError, check_elementwise, Rows(groups))


def trained_with(me, make, dtype=torch.float64, near=1e-9):
    """What passes trains as one process does, and so does offload to the host."""
    losses, weights = [], []
    for stage, offload in ((0, None), (1, None), (3, None), (2, "cpu")):
        case = Case(stage=stage, steps=7, dtype=dtype)
        model = made_for(case)
        optimizer = make(list(model.parameters()))
        engine = engine_of(me, case, model, optimizer, offload=offload)
        losses.append(torch.stack(train(me, case, engine)[0]))
        weights.append(engine.state_dict())
    for other in losses[1:]:
        torch.testing.assert_close(other, losses[0], rtol=near, atol=near)
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=near, atol=near)


def trained_with_ours(me, name):
    trained_with(me, ARE[name])


def trained_with_bitsandbytes(me, name):
    import bitsandbytes

    trained_with(me, getattr(bitsandbytes.optim, name), torch.float32, 1e-5)


@pytest.mark.parametrize("name", ["Lion", "Counts", "OwnAdamW", "Table", "WithStates"])
def test_what_passes_trains_as_the_whole(pool, name):
    pool.run(3, trained_with_ours, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW", "Lion"])
def test_bitsandbytes_in_32_bits_trains_as_the_whole(pool, name):
    pytest.importorskip("bitsandbytes")
    pool.run(3, trained_with_bitsandbytes, name, timeout=120)


def test_states_of_a_parameter_that_stage_3_has_emptied_are_seen():
    """Some optimizers make them at their own start, before an engine empties the parameter."""
    weight, small = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adagrad([small, weight], lr=0.1)
    for p in (small, weight):
        optimizer.state[p] = {"step": torch.tensor(0.0), "sum": torch.full_like(p, 0.3)}
        p.data = p.data.new_empty(0)
    shard = nn.Parameter(torch.ones(5))
    twin = twin_of(optimizer, optimizer.param_groups, [[shard]])
    assert torch.equal(twin.state[shard]["sum"], torch.full((5,), 0.3))
    shard.grad = torch.ones(5)
    type(optimizer).step(twin)
    assert torch.equal(twin.state[shard]["sum"], torch.full((5,), 1.3))
