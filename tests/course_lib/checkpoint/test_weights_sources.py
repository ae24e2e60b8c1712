"""Weights out of each kind of checkpoint: names, dtypes, every bit, and the way back."""

from __future__ import annotations

import json
import re
import shutil
from zlib import crc32

import pytest
import torch
from safetensors.torch import save_file

from course_lib import pretrained, ranks
from course_lib.checkpoint import checksums
from course_lib.checkpoint.weights import convert
from course_lib.gpt import GPT
from course_lib.pretrained.config import to_transformers
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.names import weights_of
from course_lib.pretrained.reader import Checkpoint
from tests.course_lib.checkpoint.deepspeed_parts import SHAPES, made, write
from tests.course_lib.pretrained.parts import (
    GPT2,
    LLAMA,
    bits,
    change,
    change_json,
    model_of,
    whole,
)

pytestmark = pytest.mark.cpu("files that are read without a rank")


def as_transformers(config, tmp_path, label="weights"):
    """(folder that pretrained.save wrote, its tensors in float32)"""
    folder = tmp_path / f"as transformers {label}"
    pretrained.save(model_of(config, label, torch.float32), folder)
    with Checkpoint(folder) as stored:
        return folder, {name: stored.read(name) for name in stored.slots}


def cut(me, source, target):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    pretrained.save(pretrained.from_pretrained(source, mesh), target, mesh)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_deepspeed_to_hugging_face_to_ours_and_back(pool, tmp_path, config):
    """From each stage the bytes that were trained, and through two tensor-parallel ranks."""
    want, tensors = as_transformers(config, tmp_path)
    tied = {"lm_head.weight": "transformer.wte.weight"} if config.tied else {}
    for stage in (1, 2, 3):
        run = tmp_path / f"run {stage}"
        write(run, stage, 2, tensors, tied=tied, half=torch.bfloat16)
        shutil.copy(want / "config.json", run)  # as the Trainer leaves it beside `latest`
        report = convert(run, tmp_path / f"{stage}")
        assert bits(tmp_path / f"{stage}") == bits(want)
        assert (report["source"]["kind"], report["source"]["stage"]) == ("deepspeed", stage)
        assert report["tied"] == tied and report["dtypes"] == ["float32"]
        assert report["bytes"] == sum(4 * x.numel() for x in tensors.values())
    model = pretrained.from_pretrained(tmp_path / "3")
    pretrained.save(model, tmp_path / "back")
    assert bits(tmp_path / "back") == bits(want)
    pool.run(2, cut, str(tmp_path / "3"), str(tmp_path / "cut"))
    assert bits(tmp_path / "cut") == bits(want)


@pytest.mark.parametrize("config", [GPT2, LLAMA, GPT2.changed(tied=False)])
def test_our_gpt_under_deepspeed_gets_the_names_that_transformers_knows(tmp_path, config):
    model = model_of(config, dtype=torch.float32)
    want, _ = as_transformers(config, tmp_path)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    tied = {"head.weight": "tokens.weight"} if config.tied else {}
    write(tmp_path / "run", 3, 2, tensors, tied=tied)
    report = convert(tmp_path / "run", tmp_path / "ours")
    assert set(report["files"]) == {"model.safetensors"}  # whose model is not known
    assert bits(tmp_path / "ours").keys() == tensors.keys()
    assert "with --config" in report["source"]["notes"][0]
    report = convert(tmp_path / "run", tmp_path / "theirs", config=want / "config.json")
    assert bits(tmp_path / "theirs") == bits(want)
    assert set(report["files"]) == {"model.safetensors", "config.json"}
    assert report["source"]["notes"] == [] and report["tied"] == {}


def ours(folder, config, dtype=torch.bfloat16, files=1, drop=()):
    """A checkpoint of `course train`, with the masters of what it trains; those, by our names."""
    step = folder / "checkpoints" / "step-000004"
    model = model_of(config, dtype=torch.float32)
    masters = {n: p.detach().clone() for n, p in model.named_parameters() if n not in drop}
    pretrained.save(model.to(dtype), step)
    (folder / "checkpoints" / "latest").write_text("step-000004\n")
    (step / "training.json").write_text(json.dumps({"form": 3, "step": 4}))
    stored = {f"{n}:exp_avg": torch.zeros_like(x) for n, x in masters.items()}
    if dtype != torch.float32:
        stored |= {f"{name}:master": x for name, x in masters.items()}
    names = sorted(stored)
    if files == 1:
        save_file(stored, step / "optimizer.safetensors")
    else:
        index = {}
        for number in range(files):
            own = names[number::files]
            save_file(
                {name: stored[name] for name in own}, step / f"optimizer-{number}.safetensors"
            )
            index |= dict.fromkeys(own, f"optimizer-{number}.safetensors")
        path = step / "optimizer.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": index}))
    vouch(step)
    return step, masters


def vouch(step):
    """The checksums of a checkpoint, by zlib."""
    about = {"form": 3, "files": {}, "model": {}, "optimizer": {}}
    for file in step.glob("*.safetensors"):
        raw, stem = file.read_bytes(), file.name.split(".")[0].split("-")[0]
        begin = 8 + int.from_bytes(raw[:8], "little")
        about["files"][file.name] = {"bytes": len(raw), "header": f"{crc32(raw[:begin]):08x}"}
        for name, entry in json.loads(raw[8:begin]).items():
            if name != "__metadata__":
                start, stop = (begin + at for at in entry["data_offsets"])
                about[stem][name] = f"{crc32(raw[start:stop]):08x}"
    text = json.dumps(about)
    (step / "tensors.json").write_text(text)
    names = ("tensors.json", "training.json")
    every = {name: checksums.of_bytes((step / name).read_bytes()) for name in names}
    (step / "SHA256SUMS").write_text(checksums.as_text(every))


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("files", [1, 3])
def test_of_our_checkpoints_the_master_copies(tmp_path, config, files):
    step, _ = ours(tmp_path / "run", config, files=files)
    want, _ = as_transformers(config, tmp_path)
    for number, source in enumerate([tmp_path / "run", tmp_path / "run" / "checkpoints", step]):
        report = convert(source, tmp_path / f"{number}")
        assert bits(tmp_path / f"{number}") == bits(want)
        assert report["source"] == {"kind": "course", "path": str(step), "step": 4, "notes": []}
    told = json.loads((tmp_path / "0" / "config.json").read_text())
    assert told == json.loads((want / "config.json").read_text()) and told["dtype"] == "float32"


def test_of_our_checkpoints_weights_without_a_master(tmp_path):
    """In float32 there is none, and a frozen weight never has one: the stored weight counts."""
    want, _ = as_transformers(GPT2, tmp_path)
    ours(tmp_path / "whole", GPT2, dtype=torch.float32)
    convert(tmp_path / "whole", tmp_path / "1")
    assert bits(tmp_path / "1") == bits(want)
    frozen = "blocks.1.mlp.up.weight"
    ours(tmp_path / "run", GPT2, drop=[frozen])
    convert(tmp_path / "run", tmp_path / "2")
    (there,) = (w.parts[0].name for w in weights_of(GPT2) if w.name == frozen)
    with Checkpoint(want) as full, Checkpoint(tmp_path / "2") as got:
        for name in full.slots:
            x = full.read(name)
            x = x.bfloat16().float() if name == there else x
            assert torch.equal(got.read(name), x), name


def test_hugging_face_folders_in_other_files_and_dtypes(tmp_path):
    folder, tensors = as_transformers(LLAMA, tmp_path)
    change_json(folder, lambda told: told.update(torch_dtype="float32", hidden_act="silu"))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    report = convert(folder, tmp_path / "many", shard_bytes=3000)
    assert bits(tmp_path / "many") == bits(folder)
    assert sum(name.endswith(".safetensors") for name in report["files"]) > 5
    assert "model.safetensors.index.json" in report["files"]
    assert (tmp_path / "many" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "many" / "notes.txt").exists()
    for name in ("bfloat16", "float16"):
        report = convert(tmp_path / "many", tmp_path / name, dtype=name)
        told = json.loads((tmp_path / name / "config.json").read_text())
        assert told["dtype"] == name and "torch_dtype" not in told
        with Checkpoint(tmp_path / name) as got:
            for key, x in tensors.items():
                assert torch.equal(got.read(key), x.to(getattr(torch, name))), key
    convert(tmp_path / "bfloat16", tmp_path / "as it is")
    assert bits(tmp_path / "as it is") == bits(tmp_path / "bfloat16")


def test_whole_numbers_stay_and_every_dtype_finds_its_place(tmp_path):
    buffers = {
        "count": torch.tensor(7),
        "on": torch.tensor([True, False]),
        "u": torch.ones(3).byte(),
    }
    write(tmp_path / "run", 2, 2, made(SHAPES), buffers=buffers)
    convert(tmp_path / "run", tmp_path / "out", dtype="float16")
    convert(tmp_path / "out", tmp_path / "again", shard_bytes=50)
    for folder in ("out", "again"):
        with Checkpoint(tmp_path / folder) as got:
            for name, x in buffers.items():
                assert got.whole(name).dtype == x.dtype and torch.equal(got.whole(name), x)
            for name, x in made(SHAPES).items():
                assert torch.equal(got.whole(name), x.half())


def test_tied_tensors_are_written_twice_where_the_config_says_untied(tmp_path):
    write(tmp_path / "run", 3, 2, made(SHAPES), tied={"head": "table"})
    (tmp_path / "run" / "config.json").write_text('{"tie_word_embeddings": false}')
    assert convert(tmp_path / "run", tmp_path / "out")["tied"] == {}
    with Checkpoint(tmp_path / "out") as got:
        assert torch.equal(got.read("head"), made(SHAPES)["table"])
        assert torch.equal(got.read("table"), made(SHAPES)["table"])


def test_what_is_refused(tmp_path):
    step, _ = ours(tmp_path / "run", GPT2)
    record = step / "training.json"
    whole_record = record.read_text()

    def refused(match, source=tmp_path / "run", out="out", **options):
        with pytest.raises(CheckpointError, match=match):
            convert(source, tmp_path / out, **options)
        assert not (tmp_path / "out").exists()

    record.write_text('{"form": 4}')
    refused("has format 4, but this course_lib reads format 3; use the newer")
    record.write_text(whole_record)
    refused("the weights are read from .*step-000004", out="run/checkpoints/step-000004")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(to_transformers(GPT2.changed(inner=12), torch.float32)))
    refused(r"mlp.up.weight has shape \(13, 20\), but the config needs \(12, 20\)", config=other)
    refused("there is no file .*nothing.json, which was named", config=tmp_path / "nothing.json")
    (tmp_path / "run" / "checkpoints" / "latest").write_text("step-000009")
    refused("latest names 'step-000009', which is no complete checkpoint")
    folder, _ = as_transformers(GPT2, tmp_path)
    change(folder, lambda tensors: tensors["transformer.ln_f.bias"].fill_(7e4))
    refused("20 elements of transformer.ln_f.bias, stored as torch.float32, up to 7e.04, are too "
            "large for torch.float16", folder, dtype="float16")  # fmt: skip
    change(folder, lambda t: t.update(scales=torch.ones(3).to(torch.float8_e4m3fn)))
    refused("scales is stored as F8_E4M3, which cannot be read here", folder)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    tensors = {name: p.detach() for name, p in GPT(GPT2).named_parameters()}
    write(tmp_path / "ds", 2, 2, tensors)
    more = GPT2.changed(layers=3)
    other.write_text(json.dumps(to_transformers(more, torch.float32)))
    needed = "blocks.2.attention.out.bias"
    text = f"the config is of a different model, because it needs {needed}"
    refused(text, tmp_path / "ds", config=other)


def test_out_is_whole_or_not_there(tmp_path):
    write(tmp_path / "run", 3, 2, made(SHAPES))
    convert(tmp_path / "run", tmp_path / "out")
    file = tmp_path / "run" / "step" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    raw = bytearray(file.read_bytes())
    at = raw.index(made(SHAPES)["norm"][4:].numpy().tobytes())  # the last tensor that is written
    raw[at] ^= 1
    file.write_bytes(raw)
    (tmp_path / "out" / "config.json").write_text("{}")
    before = whole(tmp_path / "out")
    for out in ("out", "new"):
        with pytest.raises(CheckpointError, match="has changed"):
            convert(tmp_path / "run", tmp_path / out)
    assert whole(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_bit_of_ours_that_has_turned_over_is_named(tmp_path, name):
    step, _ = ours(tmp_path / "run", GPT2)
    raw = bytearray((step / name).read_bytes())
    begin = 8 + int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8:begin])
    end = ":master" if name == "optimizer.safetensors" else ".weight"
    wanted = next(tensor for tensor in entries if tensor.endswith(end))
    raw[begin + entries[wanted]["data_offsets"][0]] ^= 2
    (step / name).write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"{name} is damaged in {re.escape(wanted)}"):
        convert(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
