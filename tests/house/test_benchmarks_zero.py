"""`course bench zero`, small: equal work, exact messages and memory, peers that may be missing.

Nothing here asserts a time.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest

from course_lib.gpt import GPT, Config
from tests.house.test_benchmarks_peers import KEYS, bench, refused

MODEL = {"hidden": 80, "heads": 4, "layers": 2, "sequence": 6, "batch": 4, "vocabulary": 301}
KEPT = 1 << 16  # bytes below which our stage 3 keeps a parameter whole
OURS = [f"course_lib-{which}" for which in ("0", "1", "2", "3-fast", "3-lean", "3-cpu", "3-nvme")]
TORCHS = ["ddp", "zero-redundancy-optimizer", "fsdp2", "fsdp2-reshard"]

with_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (pip install 'course_lib[deepspeed]')",
)


def measured(workload: dict, path: str = "") -> tuple[dict, dict, str]:
    """The document, its methods by name, and what was said; all of the shape they share."""
    result, said = bench("zero", workload, runs=1, path=path)
    methods = {one["name"]: one for one in result["methods"]}
    assert len(methods) == len(result["methods"]), "a method is told twice"
    first = result["methods"][0]
    assert first["name"] == "ddp" and first["ratio"] == 1.0
    assert len(set(first["losses"])) == 3  # it trains, on other words each time
    for name, one in methods.items():
        assert list(one)[: len(KEYS)] == KEYS
        assert one["ratio"] > 0 and one["seconds"] > 0
        rounded = name == "deepspeed-3-nvme"
        assert one["losses"] == pytest.approx(first["losses"], rel=5e-3 if rounded else 1e-4)
        assert 0 < one["held_mb"] < one["peak_mb"]
        assert one["settings"]
    return result, methods, said


def sizes() -> list[tuple[str, int]]:
    names = ("hidden", "heads", "layers", "vocabulary")
    model = GPT(Config.gpt2(**{n: MODEL[n] for n in names}, length=MODEL["sequence"], tied=False))
    return [(name, p.numel()) for name, p in model.named_parameters()]


@pytest.mark.slow
def test_ours_and_torchs_train_the_same_model_where_deepspeed_is_missing(tmp_path):
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("raise ImportError('hidden')\n")
    result, methods, said = measured(MODEL, path=str(tmp_path))
    assert set(methods) == {*OURS, *TORCHS}
    (left_out,) = (note for note in result["notes"] if "deepspeed" in note)
    assert "deepspeed is not installed here, so it is left out" in left_out
    assert said.count(left_out) == 1
    assert "course_lib-3-nvme: files by threads, past the page cache" in result["notes"]
    rivals = {name: one["rival"] for name, one in methods.items() if "rival" in one}
    assert rivals == {
        "zero-redundancy-optimizer": "course_lib-1",
        "fsdp2": "course_lib-3-fast",
        "fsdp2-reshard": "course_lib-3-lean",
    }
    assert all(methods[name]["against"] > 0 for name in rivals)

    every = sizes()
    psi, flags = sum(n for _, n in every), len(every)  # a byte a parameter says who has a gradient
    # For the backward again: blocks, and the words' table, asked for ahead of time in vain.
    again = sum(n for name, n in every if name.startswith(("blocks", "tokens")) and 4 * n >= KEPT)
    kept = sum(n for _, n in every if 4 * n < KEPT)
    assert 0 < kept < again
    lean = 4 * psi + 4 * again / 2 + flags + 8  # eight bytes say which gathers there were
    must = {
        "ddp": 4 * psi,
        **dict.fromkeys(OURS[:3], 4 * psi + flags),
        "course_lib-3-fast": 4 * psi + flags + 8,
        **dict.fromkeys(OURS[4:6], lean),
        "course_lib-3-nvme": lean + 4,  # and whether all wrote well
    }
    for name, nbytes in must.items():
        assert methods[name]["must_mb"] * 1e6 == pytest.approx(nbytes, abs=0.6), name
    assert methods["fsdp2"]["must_mb"] * 1e6 >= 4 * psi
    assert methods["fsdp2-reshard"]["must_mb"] > methods["course_lib-3-lean"]["must_mb"]
    assert methods["zero-redundancy-optimizer"]["must_mb"] > methods["course_lib-1"]["must_mb"]
    held = {
        "ddp": 16 * psi,  # its buckets too, in which the gradients stay
        "course_lib-0": 16 * psi,
        "course_lib-1": 12 * psi,
        "course_lib-2": 8 * psi,
        **dict.fromkeys(OURS[3:6], 6 * psi + 4 * kept),
    }
    steps = 8 * flags  # AdamW counts for every parameter or part of one
    for name, nbytes in held.items():
        assert 0 <= methods[name]["held_mb"] * 1e6 - nbytes <= steps, name


@pytest.mark.slow
@with_deepspeed
def test_deepspeed_trains_the_same_model():
    only = "course_lib-2,deepspeed-2,course_lib-3-lean,deepspeed-3-strict"
    result, methods, _ = measured({**MODEL, "only": only})
    assert set(methods) == {"ddp", *only.split(",")}
    assert "notes" not in result
    pairs = {"deepspeed-2": "course_lib-2", "deepspeed-3-strict": "course_lib-3-lean"}
    for theirs, ours in pairs.items():
        assert methods[theirs]["rival"] == ours and methods[theirs]["against"] > 0
        assert methods[theirs]["must_mb"] > methods[ours]["must_mb"]


def test_settings_are_looked_at_before_ranks_are_started(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # a benchmark puts its folder there

    def said(wrong: str) -> str:
        return refused("zero", "--json", "--set", wrong)

    told = said("only=ddp,zero-2")
    assert "only=zero-2 is unknown; the methods are ddp, course_lib-0," in told
    assert told.rstrip().endswith("deepspeed-3-cpu, deepspeed-3-nvme")
    assert "batch=3 is the total over all ranks, but ranks=2 does not divide it" in said("batch=3")
    assert "dtype=float8 is not one of float64, float32" in said("dtype=float8")
