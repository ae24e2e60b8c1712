"""Weights one by one, into a model, out of an engine; and how much of them is held meanwhile."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import pytest
import torch
from torch import nn

from course_lib import memory, pretrained, ranks, zero
from course_lib.checkpoint import sources
from course_lib.checkpoint.deepspeed_files import archive
from course_lib.checkpoint.weights import convert, load_into, save_16bit, state_dict
from course_lib.gpt import GPT
from course_lib.pretrained import reader
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.reader import Checkpoint
from tests.checkpoint.deepspeed_parts import SHAPES, Net, made, write
from tests.pretrained.parts import GPT2, LLAMA, bits, model_of
from tests.tensor_parallel.parts import said

AT_ONCE = 1 << 12


@pytest.fixture
def small_buffers(monkeypatch):
    for module in (archive, sources, reader):
        monkeypatch.setattr(module, "AT_ONCE", AT_ONCE)


@pytest.mark.cpu("files that are read without a rank")
def test_tensors_come_one_by_one_under_all_their_names(tmp_path, monkeypatch):
    tensors = made(SHAPES)
    count = torch.tensor([3])
    write(tmp_path, 3, 2, tensors, buffers={"count": count}, tied={"head": "table"})
    got = dict(state_dict(tmp_path))
    assert list(got) == ["count", "table", "head", *list(SHAPES)[1:]]
    assert all(torch.equal(got[name], x) for name, x in tensors.items())
    assert got["head"] is got["table"] and got["count"].dtype == torch.int64
    assert "head" not in dict(state_dict(tmp_path, tied=False))
    assert dict(state_dict(tmp_path, dtype=torch.bfloat16))["norm"].dtype == torch.bfloat16
    alive, read = [], sources.Source.read

    def watched(self, name, dtype=None):
        assert not any(ref() is not None for ref in alive), f"held while {name} is read"
        alive.append(weakref.ref(x := read(self, name, dtype)))
        return x

    monkeypatch.setattr(sources.Source, "read", watched)
    for _, x in state_dict(tmp_path):
        del x
    assert len(alive) == 6


@pytest.mark.parametrize(
    "config", [LLAMA.changed(hidden=168), GPT2.changed(hidden=160)], ids=["llama", "gpt2"]
)
def test_a_conversion_holds_one_tensor_and_one_buffer(tmp_path, small_buffers, config):
    """From two ranks' files to a folder, split, or transposed, on its way; the rest is names."""
    config = config.changed(layers=3, inner=1280)
    model = model_of(config, dtype=torch.float32)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    pretrained.save(model, tmp_path / "want")
    write(
        tmp_path / "run",
        2,
        2,
        tensors,
        tied={"head.weight": "tokens.weight"} if config.tied else {},
    )
    with Checkpoint(tmp_path / "want") as stored:
        sizes = [slot.stop - slot.start for slot in stored.slots.values()]
    most, total = max(sizes), sum(sizes)
    del model, tensors

    def go(out, dtype):
        convert(
            tmp_path / "run", tmp_path / out, config=tmp_path / "want" / "config.json", dtype=dtype
        )

    go("warm", "float32")
    assert bits(tmp_path / "warm") == bits(tmp_path / "want")
    gc.collect()
    tracemalloc.start()  # where buffers are; torch's own memory is seen by the meter
    before, _ = tracemalloc.get_traced_memory()
    go("float32", "float32")
    _, held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most <= held - before < most + 4 * AT_ONCE + 400_000 < total / 3
    if config.tied:  # the transposed ones
        with memory.peak() as torchs:
            go("bfloat16", "bfloat16")
        assert torchs.bytes < 4 * AT_ONCE


def test_into_a_model_of_torchs(tmp_path):
    want = Net()
    tensors = {n: torch.randn_like(p) for n, p in want.named_parameters() if "frozen" not in n}
    frozen = {n: torch.randn_like(p) for n, p in want.frozen.named_parameters(prefix="frozen")}
    buffers = {"mean": torch.rand(5), "count": torch.tensor([9])}
    tied = {"head.weight": "table.weight"}
    write(tmp_path, 3, 2, tensors, frozen=frozen, buffers=buffers, tied=tied)
    model = Net().bfloat16()
    assert load_into(model, tmp_path) is model
    for name, x in {**tensors, **frozen}.items():
        got = model.get_parameter(name)
        assert got.dtype == torch.bfloat16 and torch.equal(got, x.bfloat16()), name
    assert model.head.weight is model.table.weight and model.count.item() == 9
    untied = Net()
    untied.head.weight = nn.Parameter(torch.zeros(11, 5))
    load_into(untied, tmp_path)
    assert torch.equal(untied.head.weight, tensors["table.weight"])


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_into_our_gpt_whatever_the_names(tmp_path, config):
    want = model_of(config, "other", torch.float32)
    pretrained.save(want, tmp_path / "theirs")
    tied = {"head.weight": "tokens.weight"} if config.tied else {}
    tensors = {name: p.detach() for name, p in want.named_parameters()}
    write(tmp_path / "ours", 2, 2, tensors, tied=tied)
    for source in ("theirs", "ours"):
        model = load_into(model_of(config, "this", torch.float32), tmp_path / source)
        assert all(torch.equal(p, tensors[name]) for name, p in model.named_parameters())


def test_into_another_model_nothing_goes(tmp_path):
    tensors = {n: torch.randn_like(p) for n, p in Net().named_parameters() if "frozen" not in n}
    write(tmp_path, 2, 2, tensors, buffers={"mean": torch.rand(5)}, tied={})
    for change, match in [
        (lambda net: None, "count of the model is not in it; 3 tensors of the model are missing"),
        (lambda net: setattr(net, "norm", nn.Identity()), "are missing, and 2 are too many"),
        (lambda net: (_only(net), setattr(net, "up", nn.Linear(6, 7))),
         r"up.weight is \(7, 5\), and the model's is \(7, 6\)"),
        (lambda net: (_only(net), net.to("meta")), "has no memory yet; model.to_empty gives it"),
    ]:  # fmt: skip
        net = Net()
        change(net)
        before = {name: x.clone() for name, x in net.state_dict().items()}
        with pytest.raises(CheckpointError, match=match):
            load_into(net, tmp_path)
        assert all(x.is_meta or torch.equal(x, before[n]) for n, x in net.state_dict().items())


def _only(net):
    """The same without what the checkpoint has not."""
    del net.frozen, net.count


def engines(me, folder):
    """At each stage the weights in 16 bits, gathered or not; what was said."""
    mesh = ranks.mesh(me, dp=2, tp=me.world // 2)
    found = []
    for stage in (0, 2, 3):
        model = model_of(LLAMA, dtype=torch.float32)
        if mesh["tp"].size() > 1:
            from course_lib.tensor_parallel import parallelize

            parallelize(model, mesh)
        engine = zero.engine(
            model, torch.optim.AdamW(model.parameters()), stage=stage, mesh=mesh,
            precision="bfloat16",
        )  # fmt: skip
        save_16bit(engine, f"{folder}/{stage}", mesh)
        if stage < 3:
            save_16bit(engine, f"{folder}/{stage}-not", mesh, gather=False)
        else:
            found.append(
                said(CheckpointError, save_16bit, engine, f"{folder}/no", mesh, gather=False)
            )
        engine.close()
    return found


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sixteen_bits_of_an_engine(pool, tmp_path, world):
    said_ = pool.run(world, engines, str(tmp_path))
    assert all("gather=False at stage 3: each rank holds a part" in text for (text,) in said_)
    pretrained.save(model_of(LLAMA, dtype=torch.float32).bfloat16(), tmp_path / "want")
    want = bits(tmp_path / "want")
    for name in ("0", "2", "3", "0-not", "2-not"):
        assert bits(tmp_path / name) == want, name
    assert not (tmp_path / "no").exists()
    assert isinstance(pretrained.from_pretrained(tmp_path / "3"), GPT)
