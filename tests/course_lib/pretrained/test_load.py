"""Weights in: what each rank gets, dtypes and ties, and bad checkpoints before they do harm."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from course_lib import ranks
from course_lib.gpt import GPT
from course_lib.pretrained import CheckpointError, from_pretrained, load
from course_lib.pretrained.sketch import without_numbers
from course_lib.tensor_parallel import parallelize
from tests.course_lib.pretrained.parts import (
    GPT2,
    LLAMA,
    THREE,
    change,
    change_json,
    model_of,
    odd_bits,
    written,
)
from tests.course_lib.tensor_parallel.parts import fewer, held, part, said


def bit_equal(one, other):
    """Equal to the last bit, whatever NaN or zero it is."""
    return torch.equal(one.detach().view(torch.int64), other.detach().view(torch.int64))


def pieces(me, cases):
    """Each checkpoint into a cut model: on meta, and over the numbers of another one."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    missing = []
    for folder, config, options in cases:
        dense = odd_bits(model_of(config))
        where = held(dense, lambda twin, options=options: parallelize(twin, mesh, **options))
        missing.append(fewer(where, dense))
        whole = dict(dense.named_parameters())
        made = from_pretrained(folder, mesh, **options)
        filled = parallelize(model_of(config, "others"), mesh, **options)
        addresses = [p.data_ptr() for p in filled.parameters()]
        assert load(filled, folder, mesh) is filled
        assert addresses == [p.data_ptr() for p in filled.parameters()]
        assert not made.training and filled.training
        for model in (made, filled):
            assert (model.head.weight is model.tokens.weight) == config.tied
            assert {name for name, _ in model.named_parameters()} == set(where)
            for name, p in model.named_parameters():
                assert p.dtype == torch.float64 and p.requires_grad, name
                if name in ("tokens.weight", "head.weight"):
                    table = model.tokens  # the twin's padding is zeros, which is also an index
                    real = max(0, min(table.stop, config.vocabulary) - table.start)
                    assert bit_equal(p[:real], whole[name][table.start :][:real]), name
                    assert len(p) == table.stop - table.start and not p[real:].any()
                else:
                    assert bit_equal(p, part(whole[name], where[name])), name
    return missing


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_rank_gets_its_own(pool, tmp_path, world):
    from course_lib.pretrained import save

    plans = [
        (GPT2, {}),
        (THREE if world == 3 else LLAMA, {"multiple_of": 16}),  # 41 words padded to 48
        (GPT2.changed(tied=False, inner=5), {"multiple_of": 7, "sequence": True}),
    ]
    cases = []
    for number, (config, options) in enumerate(plans):
        save(odd_bits(model_of(config)), tmp_path / f"{number}", shard_bytes=(5e9, 2e4, 1)[number])
        cases.append((str(tmp_path / f"{number}"), config, options))
    for missing in pool.run(world, pieces, cases):
        assert min(missing) > 0 or world == 1


def test_a_dense_model_and_names_without_a_prefix(tmp_path):
    for config, prefix in ((GPT2, "transformer."), (THREE, "model.")):
        folder = written(config, tmp_path / prefix)
        want = dict(model_of(config).named_parameters())

        def bare(tensors, prefix=prefix, config=config):
            for name in list(tensors):
                tensors[name.removeprefix(prefix)] = tensors.pop(name)
            mask = torch.ones(1, 1, 13, 13, dtype=torch.uint8)
            extra = ["h.1.attn.bias", "h.0.attn.masked_bias"]
            if config is THREE:
                extra = ["layers.1.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"]
            tensors.update({name: mask.clone() for name in extra})

        for _ in range(2):
            got = from_pretrained(folder)
            assert all(torch.equal(p, want[name]) for name, p in got.named_parameters())
            change(folder, bare)


def test_a_head_that_is_tied_and_stored_too(tmp_path):
    folder = written(GPT2, tmp_path / "one")
    table = model_of(GPT2).tokens.weight.detach()
    change(folder, lambda tensors: tensors.update({"lm_head.weight": table.clone()}))
    assert torch.equal(from_pretrained(folder).head.weight, table)
    other = table.clone()
    other[40, 3] += 1e-9
    change(folder, lambda tensors: tensors.update({"lm_head.weight": other}))
    with pytest.raises(
        CheckpointError, match=r"lm_head.weight differs from transformer.wte.weight"
    ):
        from_pretrained(folder)


def test_dtypes_and_frozen_parameters(tmp_path):
    config = LLAMA
    folder = written(config, tmp_path / "one")
    stored = dict(model_of(config).named_parameters())
    for dtype in (None, torch.float32, torch.bfloat16, torch.float16):
        got = from_pretrained(folder, dtype=dtype)
        for name, p in got.named_parameters():
            assert torch.equal(p, stored[name].to(dtype or torch.float64)), name
    single = tmp_path / "single"
    shutil.copytree(folder, single)
    change(single, lambda tensors: tensors.update({k: x.float() for k, x in tensors.items()}))
    assert from_pretrained(single).norm.weight.dtype == torch.float32  # as it is stored
    model = model_of(config, "others")
    load(model, single)
    assert torch.equal(model.norm.weight, stored["norm.weight"].float().double())
    empty = without_numbers(config)
    for p in empty.blocks.parameters():
        p.requires_grad_(False)
    load(empty, single)
    assert [p.requires_grad for p in empty.parameters()] == [
        not name.startswith("blocks.") for name in stored
    ]

    def large(tensors):
        tensors["lm_head.weight"][0, :3] = torch.tensor([7e4, -9e4, float("inf")])

    change(single, large)
    from_pretrained(single, dtype=torch.bfloat16)
    with pytest.raises(
        CheckpointError, match=r"2 elements of lm_head.weight, .* up to 9e\+04, are t"
    ):
        from_pretrained(single, dtype=torch.float16)


def cut_off(folder):
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)


C_FC = "transformer.h.1.mlp.c_fc.weight"
BAD = {
    "cut off": (cut_off, "should have .* So 1 of its 28 tensors are incomplete"),
    "missing": (lambda f: change(f, lambda t: [t.pop(C_FC), t.pop("transformer.wpe.weight")]),
                f"lacks 2 of the 28 tensors .*: {C_FC}, transformer.wpe.weight"),
    "nothing known": (lambda f: change(f, lambda t: [t.clear(), t.update(x=torch.ones(1))]),
                      "28 of the 28 .* and 24 more"),
    "extra": (lambda f: change(f, lambda t: t.update({"transformer.h.2.ln_1.bias": torch.ones(9)})),
              r"1 tensors do not belong in this model of 2 layers \(transformer.h.2.ln_1.bias"),
    "misshapen": (lambda f: change(f, lambda t: t.update({C_FC: torch.ones(20, 12).double()})),
                  rf"{C_FC} is \(20, 12\), but the model's config needs \(20, 13\)$"),
    "transposed": (lambda f: change(f, lambda t: t.update({C_FC: t[C_FC].t().contiguous()})),
                   "Is it transposed"),
    "whole numbers": (lambda f: change(f, lambda t: t.update({C_FC: t[C_FC].to(torch.int8)})),
                      f"{C_FC} is stored as I8, but .* Was the checkpoint quantized"),
    "another family": (lambda f: shutil.copy(f.parent / "llama" / "config.json", f),
                       "is a llama's, but the model is a gpt2"),
    "another epsilon": (lambda f: change_json(f, lambda t: t.update(layer_norm_epsilon=0.1)),
                        r"the model differs from .* in epsilon=1e-05 \(there 0.1\); create it"),
    "an untied head": (lambda f: change_json(f, lambda t: t.update(tie_word_embeddings=False)),
                       r"tied=True \(there False\)"),
    "no config's JSON": (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint_is_refused_and_the_model_stays_as_it_was(tmp_path, name):
    damage, match = BAD[name]
    written(LLAMA, tmp_path / "llama")
    folder = written(GPT2, tmp_path / "one")
    model = model_of(GPT2, "others")
    load(copy.deepcopy(model), folder)
    damage(folder)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises((ValueError, OSError), match=match):
        load(model, folder)
    assert all(map(torch.equal, before, model.parameters()))


def test_models_that_cannot_be_filled(tmp_path):
    folder = written(GPT2, tmp_path / "one")
    with pytest.raises(CheckpointError, match=r"this is a DataParallel; pass its .module"):
        load(nn.DataParallel(GPT(GPT2)), folder)
    untied = GPT(GPT2)
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    with pytest.raises(CheckpointError, match=r"tied=True in the model's config, but .* two param"):
        load(untied, folder)
    with pytest.raises(TypeError, match="multiple_of describes sharding, but no mesh"):
        from_pretrained(folder, multiple_of=4)
    change_json(folder, lambda told: told.update(tie_word_embeddings=False))
    with pytest.raises(CheckpointError, match=r"model: lm_head.weight \(if the head is tied"):
        from_pretrained(folder)


def one_bad_copy(me, folder):
    """Every rank reads its own copy, and one rank's is bad in three ways, one after the other."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    model = parallelize(model_of(GPT2, "others"), mesh)
    before = [p.detach().clone() for p in model.parameters()]
    own, found = Path(f"{folder}-{me.rank}"), []
    for wrong in ("cut off", "config", "gone"):
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(folder, own)
        if me.rank == 1 and wrong == "cut off":
            cut_off(own)
        elif me.rank == 1:
            (own / {"config": "config.json", "gone": "model.safetensors"}[wrong]).unlink()
        kinds = (CheckpointError, FileNotFoundError)
        group = mesh if wrong == "cut off" else None  # without it, the model says who shares it
        if wrong == "config":
            found.append(said(kinds, from_pretrained, own, mesh))
        else:
            found.append(said(kinds, load, model, own, group))
    assert all(map(torch.equal, before, model.parameters()))
    load(model, folder, mesh)
    assert not any(map(torch.equal, before, model.parameters()))
    return found


def test_what_is_wrong_on_one_rank_stops_all(pool, tmp_path):
    folder = written(GPT2, tmp_path / "one")
    for rank, (cut, config, gone) in enumerate(pool.run(3, one_bad_copy, str(folder))):
        assert "1 of its 28 tensors" in cut
        assert "config.json is missing" in config
        assert "holds neither" in gone
        for text in (cut, config, gone):
            assert ("failed on rank 1, so it stopped here: " in text) == (rank != 1)
            assert f"one-{1}" in text


def test_a_name_on_the_hub(tmp_path, monkeypatch):
    """A model in the hub's own cache is found without a network; another one is not."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--somebody--small"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    written(GPT2, kept / "snapshots" / ("0" * 40))
    got, want = from_pretrained("somebody/small"), model_of(GPT2)
    assert all(map(torch.equal, got.parameters(), want.parameters()))
    with pytest.raises(CheckpointError, match="no folder 'somebody/large' here, and the hub did n"):
        from_pretrained("somebody/large")
    for path in ("/gone/somebody", "./somebody/small", "gone.safetensors"):
        with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
            from_pretrained(path)


def test_only_safetensors_and_json_are_fetched(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    asked = {}

    def snapshot_download(name, *, allow_patterns):
        asked[name] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(CheckpointError, match="model_type='bert'"):
        from_pretrained("somebody/else")
    assert asked == {"somebody/else": ["*.safetensors", "*.json"]}
