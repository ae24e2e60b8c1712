"""Weights out of ZeRO: 16 bits at stage 3, float32 on the way and from a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.course_lib.peers.then_and_now import parts
from tests.course_lib.peers.then_and_now.parts import (
    batch_of,
    gpt2,
    meet,
    needs_deepspeed,
    settings,
)

pytestmark = [needs_deepspeed, pytest.mark.slow]


def trained(deepspeed, me, stage, steps=2, model=None, **more):
    model = gpt2(seed=2) if model is None else model
    engine = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings(stage, **more)
    )[0]
    for step in range(steps):
        engine.backward(engine(**batch_of(me, step)).loss)
        engine.step()
    return engine


def whole(deepspeed, engine):
    weights = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            weights[name] = parameter.detach().clone()
    return weights


def out(me, folder):
    deepspeed = meet(me)
    from deepspeed.utils.zero_to_fp32 import (
        get_fp32_state_dict_from_zero_checkpoint,
        load_state_dict_from_zero_checkpoint,
    )

    quiet = trained(deepspeed, me, 3)
    wrote = [quiet.save_16bit_model(f"{folder}/unsaved")]
    quiet.save_checkpoint(f"{folder}/checkpoint")
    engine = trained(
        deepspeed, me, 3, zero={"stage3_gather_16bit_weights_on_model_save": True},
    )  # fmt: skip
    want = whole(deepspeed, engine)
    wrote.append(engine.save_16bit_model(f"{folder}/saved"))
    torch.distributed.barrier()
    if me.rank == 0:
        saved = torch.load(f"{folder}/saved/pytorch_model.bin", weights_only=True)
        assert all(torch.equal(saved[name], want[name]) for name in want)
        online = get_fp32_state_dict_from_zero_checkpoint(f"{folder}/checkpoint")
        assert all(torch.equal(online[name], want[name]) for name in want)
        model = load_state_dict_from_zero_checkpoint(gpt2(seed=9), f"{folder}/checkpoint")
        assert all(torch.equal(p, want[name]) for name, p in model.named_parameters())
        torch.save(want, f"{folder}/want.pt")
    torch.distributed.barrier()
    return wrote


def test_sixteen_bits_and_float32_on_the_way_and_afterwards(pool, tmp_path):
    assert parts.run(pool, 2, out, str(tmp_path)) == [[False, True]] * 2
    assert not list((tmp_path / "unsaved").glob("*"))
    checkpoint = tmp_path / "checkpoint"
    step = (checkpoint / "latest").read_text()
    assert step == "global_step2" and (checkpoint / step).is_dir()
    # The script lies beside the checkpoint; its second argument is a folder.
    command = [sys.executable, "zero_to_fp32.py", ".", "out", "--max_shard_size", "4KB"]
    subprocess.run(command, cwd=checkpoint, check=True, capture_output=True, timeout=100)
    want = torch.load(tmp_path / "want.pt", weights_only=True)
    index = json.loads((checkpoint / "out" / "pytorch_model.bin.index.json").read_text())
    files = {name: torch.load(checkpoint / "out" / name, weights_only=True)
             for name in set(index["weight_map"].values())}  # fmt: skip
    assert len(files) > 1
    for name, tensor in want.items():
        assert torch.equal(files[index["weight_map"][name]][name], tensor), name


def on_two_nodes(me, folder):
    """Each rank believes that it is the first of a node with a disk of its own."""
    deepspeed = meet(me, local_rank=0)
    for local in (False, True):
        engine = trained(deepspeed, me, 2, checkpoint={"use_node_local_storage": local})
        engine.save_checkpoint(f"{folder}/node-{me.rank}-{local}", tag="step")
        torch.distributed.barrier()
        if local:  # each node finds its own; which step was the latest, node 0 alone has been told
            assert engine.load_checkpoint(f"{folder}/node-{me.rank}-{local}", tag="step")[0]
        engine.destroy()


def test_without_a_shared_disk_every_node_writes_the_model(pool, tmp_path):
    parts.run(pool, 2, on_two_nodes, str(tmp_path))

    def models(node, local):
        return [one.name for one in Path(tmp_path, f"node-{node}-{local}", "step").glob("mp_*")]

    assert models(0, False) == models(0, True) == ["mp_rank_00_model_states.pt"]
    assert models(1, False) == []
    assert models(1, True) == ["mp_rank_00_model_states.pt"]
    latest = [Path(tmp_path, f"node-{node}-True", "latest").exists() for node in (0, 1)]
    assert latest == [True, False]
    for node in (0, 1):  # the optimizer's shard is each rank's own in both
        for local in (False, True):
            folder = tmp_path / f"node-{node}-{local}" / "step"
            (shard,) = [one.name for one in folder.glob("*optim_states.pt")]
            assert f"rank_{node}_" in shard
