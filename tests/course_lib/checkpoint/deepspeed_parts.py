"""What these tests share: DeepSpeed's files as it lays them out, and its own engine on two ranks.

The files are written here element by element, as a run of DeepSpeed 0.19.8 leaves them, so most
tests need no DeepSpeed; test_deepspeed_itself.py holds the reader against such runs.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict
from contextlib import contextmanager
from unittest import mock

import torch
from torch import nn

NAMES = {
    "LossScaler": "deepspeed.runtime.fp16.loss_scaler",
    "DynamicLossScaler": "deepspeed.runtime.fp16.loss_scaler",
    "ZeroStageEnum": "deepspeed.runtime.zero.config",
    "fragment_address": "deepspeed.utils.tensor_fragment",
}
# Odd sizes, one smaller than the world, one that fills an aligned row of 16 bytes.
SHAPES = {"table": (11, 5), "up.weight": (7, 5), "up.bias": (7,), "scale": (), "norm": (8,)}


def made(shapes, seed=0, dtype=torch.float32):
    """A tensor for each name, of which no two elements are alike."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()
    }


@contextmanager
def deepspeeds_names():
    """Classes that pickle under DeepSpeed's names, whether it is installed or not."""
    modules = {}
    for name, module in NAMES.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            modules.setdefault(path, types.ModuleType(path))
        enumerated = name == "ZeroStageEnum"
        body = {"__reduce__": _called_with_its_value} if enumerated else {}
        base = (int,) if enumerated else ()
        setattr(modules[module], name, type(name, base, {"__module__": module, **body}))
    with mock.patch.dict(sys.modules, modules):
        yield types.SimpleNamespace(
            **{name: getattr(modules[module], name) for name, module in NAMES.items()}
        )


def _called_with_its_value(self):
    return type(self), (int(self),)


def write(
    folder, stage, world, tensors, *, groups=None, moments=("exp_avg", "exp_avg_sq"), frozen=None,
    buffers=None, tied=None, half=torch.float32, gap=1, elastic=False, scaler="LossScaler",
    tag="step",
):  # fmt: skip
    """A checkpoint of these tensors, the moments being theirs times 2, 3, …; what a moment has
    to be is `moment(tensor, number)`. `groups`: lists of names, a group of options each."""
    frozen, buffers, tied = frozen or {}, buffers or {}, tied or {}
    groups = groups or [list(tensors)]
    step = folder / tag
    step.mkdir(parents=True)
    (folder / "latest").write_text(tag)
    with deepspeeds_names() as ds:
        loss_scaler = getattr(ds, scaler)()
        loss_scaler.__dict__.update(cur_scale=1.0, dynamic=False)
        shapes = [OrderedDict((n, tensors[n].shape) for n in names) for names in groups]
        common = {
            "buffer_names": list(buffers), "optimizer": None, "param_shapes": shapes,
            "shared_params": dict(tied), "lr_scheduler": None, "skipped_steps": 0,
            "global_steps": 2, "global_samples": 8, "dp_world_size": world, "mp_world_size": 1,
            "ds_config": {"train_batch_size": 4}, "ds_version": "0.19.8",
        }  # fmt: skip
        every = [("master", 1)] + [(name, 2 + i) for i, name in enumerate(moments)]
        for rank in range(world):
            flats = {
                quantity: [
                    _part({n: tensors[n] * times for n in names}, stage, rank, world, gap,
                          lean=quantity == "master" or elastic)
                    for names in groups
                ]
                for quantity, times in every
            }  # fmt: skip
            saved = _optimizer(ds, stage, world, groups, flats, moments, elastic, tensors, gap)
            saved["loss_scaler"] = loss_scaler
            told = {"optimizer_state_dict": saved, "ds_config": {}, "ds_version": "0.19.8"}
            prefix = "bf16_" if half == torch.bfloat16 else ""
            torch.save(told, step / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
            if stage == 3 or rank == 0:
                model = _model(stage, rank, world, tensors, frozen, buffers, tied, half)
                name = f"zero_pp_rank_{rank}_" if stage == 3 else ""
                torch.save({**common, **model}, step / f"{name}mp_rank_00_model_states.pt")
    return step


def moment(x, number):
    """The moment of this number, from 0, of a tensor that `write` wrote."""
    return x * (2 + number)


def _flat(tensors, gap):
    """One after another, each but the last filled up to a multiple of `gap`."""
    pieces = []
    for x in tensors.values():
        pieces += [x.reshape(-1), x.new_full((-x.numel() % gap,), 7e7)]
    return torch.cat(pieces[:-1])


def _part(tensors, stage, rank, world, gap, lean):
    """What a rank has of a group: a run of the flat tensor, or at stage 3 a part of each."""
    if stage == 3:
        return torch.cat([_slice(x, rank, world) for x in tensors.values()])
    flat = _flat(tensors, gap)
    size = 2 * -(-flat.numel() // (2 * world))
    mine = flat[rank * size : (rank + 1) * size].clone()
    return mine if lean else torch.cat([mine, mine.new_full((size - len(mine),), 8e8)])


def _slice(x, rank, world):
    size = -(-x.numel() // world)
    mine = x.reshape(-1)[rank * size : (rank + 1) * size]
    return torch.cat([mine, mine.new_full((size - len(mine),), 9e9)])


def _optimizer(ds, stage, world, groups, flats, moments, elastic, tensors, gap):
    states = [
        {"step": torch.tensor(2.0), **{name: flats[name][number] for name in moments}}
        for number in range(len(groups))
    ]
    states = states if moments else [{} for _ in groups]
    listed = [
        {"lr": 0.01 * (n + 1), "betas": (0.9, 0.999), "params": [n]} for n in range(len(groups))
    ]
    base = {"state": {n: state for n, state in enumerate(states) if state}, "param_groups": listed}
    common = {"dynamic_loss_scale": False, "overflow": False, "zero_stage": ds.ZeroStageEnum(stage)}
    if stage == 3:
        masters = {"optimizer_state_dict": base, "fp32_flat_groups": flats["master"]}
        return {**common, "partition_count": world, **masters}
    address = ds.fragment_address()
    address.__dict__.update(numel=3, start=0)
    sizes = [2 * -(-_flat({n: tensors[n] for n in g}, gap).numel() // (2 * world)) for g in groups]
    gaps = [[-tensors[n].numel() % gap for n in g[:-1]] + [0] for g in groups]
    return {
        **common,
        "base_optimizer_state": states if elastic else base,
        "single_partition_of_fp32_groups": flats["master"],
        "group_paddings": [s - len(x) for s, x in zip(sizes, flats["master"], strict=True)],
        "param_alignment_paddings": gaps,
        "partition_count": [world] * len(groups),
        "param_slice_mappings": [OrderedDict(first=address)],
    }


def _model(stage, rank, world, tensors, frozen, buffers, tied, half):
    """The module of a model file, and what its frozen parameters are."""
    plain = {n: x.to(half) for n, x in {**tensors, **frozen}.items()}
    plain |= {name: plain[of] for name, of in tied.items()}
    if stage == 3:
        plain = {name: x.new_empty(0) for name, x in plain.items()}
    told = {"module": OrderedDict(**buffers, **plain)}
    told["frozen_param_shapes"] = OrderedDict((n, x.shape) for n, x in frozen.items())
    parts = {
        n: _slice(x.to(half), rank, world) if stage == 3 else x.to(half) for n, x in frozen.items()
    }
    told["frozen_param_fragments"] = parts
    if stage == 1:
        told |= {"frozen_param_shapes": None, "frozen_param_fragments": None}
    return told


class Net(nn.Module):
    """Tied and frozen parameters, two buffers that are saved and one that is not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, 5)
        self.up, self.down, self.norm = nn.Linear(5, 7), nn.Linear(7, 5), nn.LayerNorm(5)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.table.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.register_buffer("mean", torch.arange(5.0))
        self.register_buffer("count", torch.tensor([3]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, ids):
        x = self.table(ids)
        x = self.norm(self.down(torch.tanh(self.up(x))) + self.frozen(x))
        logits = self.head(x).float().flatten(0, 1)
        return nn.functional.cross_entropy(logits, ids.flatten())


def trained(deepspeed, me, folder, stage, *, zero=(), groups=False, steps=2, **more):
    """DeepSpeed trains a Net and saves it; what it has itself, whole, by quantity and name."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    from tests.course_lib.peers.then_and_now.parts import settings

    model = Net()
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    parameters = [p for _, p in named]
    if groups:
        parameters = [
            {"params": [p for _, p in named if p.ndim > 1]},
            {"params": [p for _, p in named if p.ndim == 1], "lr": 0.02},
        ]
    config = settings(stage, zero=dict(zero), **more)
    engine = deepspeed.initialize(model=model, model_parameters=parameters, config=config)[0]
    for step in range(steps):
        torch.manual_seed(10 * step + me.rank)
        engine.backward(engine(torch.randint(11, (2, 4))))
        engine.step()
    engine.save_checkpoint(folder)
    if groups and stage < 3:  # 0.19.8 links moments and parameters of its first group alone
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    got = {"master": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for name, p in engine.module.named_parameters():
        if p.requires_grad:
            got["master"][name] = safe_get_full_fp32_param(p).clone()
            for key in ("exp_avg", "exp_avg_sq"):
                got[key][name] = safe_get_full_optimizer_state(p, key).clone()
        else:
            with deepspeed.zero.GatheredParameters([p], enabled=hasattr(p, "ds_id")):
                got["master"][name] = p.detach().float().clone()
    engine.destroy()
    return got
