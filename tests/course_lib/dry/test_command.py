"""`course dry-run`: what it prints, what it takes for a model, and what it refuses, in words."""

from __future__ import annotations

import json

import pytest

from course_lib import dry
from tests.course_lib.dry.parts import SIZES
from tests.support.commands import called

GPT2 = {
    "model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 40,
    "vocab_size": 83, "attn_pdrop": 0.1,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 44, "max_position_embeddings": 40,
    "vocab_size": 83, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def dry_run(capsys, *words: object) -> tuple[int, str, str]:
    return called(capsys, "dry-run", *words)


def test_it_says_what_is_sent_and_held_and_what_formulas_say(capsys):
    words = ["--world", 8, "--rank", 3, "--tp", 2, *SIZES, "--stage", 3]
    code, out, err = dry_run(capsys, *words)
    assert (code, err) == (0, "")
    assert "rank 3 of 8: dp 4 × tp 2, ZeRO stage 3" in out
    assert "closed forms give the same" in out and "peak of the device" in out
    code, out, err = dry_run(capsys, *words, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {row["verb"] for row in found["verbs"] if row["axis"] == "dp" and not row["label"]} == {
        "all_gather", "reduce_scatter",
    }  # fmt: skip
    for item in ("held_by_tier", "held_by_kind", "sent_by_axis"):
        assert found[item] == found["estimate"][item]


@pytest.mark.parametrize(
    "keys", [pytest.param(GPT2, marks=pytest.mark.slow), LLAMA], ids=["gpt2", "llama"]
)
def test_a_config_json_is_a_model(capsys, tmp_path, keys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(keys))
    code, out, _ = dry_run(capsys, "--world", 6, "--tp", 2, "--config", file, "--accumulate", 2)
    assert code == 0
    assert "a step of 6 sequences of 40 tokens on all ranks, in 2 micro-batch(es)" in out
    assert "estimate a peak of" in out  # there is none for the dropout that the file has


def test_nothing_is_written_and_files_are_counted(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--world", 4, *SIZES, "--stage", 3, "--offload", "nvme", "--json"]
    code, out, _ = dry_run(capsys, *words, "--offload-folder", tmp_path / "states")
    found = json.loads(out)
    assert code == 0 and list(tmp_path.iterdir()) == []
    assert found["held_by_tier"]["disk"] == found["held_by_kind"]["files"] > 0
    assert found["host_peak"] > found["held_by_tier"]["host"] > 0


def test_a_file_of_options_is_one_too(capsys, tmp_path):
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"stage": 2, "tp": 2, "hidden": 16, "layers": 1, "length": 8}))
    code, out, _ = dry_run(capsys, "--world", 4, "--config", file, "--heads", 2)
    assert code == 0 and "dp 2 × tp 2, ZeRO stage 2" in out
    assert "a step of 2 sequences of 8 tokens" in out


WRONG = {
    "no world": ([], "--world is missing"),
    "world of none": (["--world", 0], "--world 0 must be 1 or more"),
    "world of all": (["--world", 10**9], "--world 1,000,000,000: more than 262,144 GPUs"),
    "no such rank": (["--world", 4, "--rank", 4], "the ranks of a world of 4 are 0 to 3"),
    "tp does not divide": (["--world", 6, "--tp", 4], "Use one of 1, 2, 3, 6"),
    "weights": (["--world", 2, "--from", "gpt2"], "--from is for a run with values"),
    "ranks": (["--world", 2, "--ranks", 2], "--ranks is for a run with values"),
    "no number": (["--world", "many"], "invalid int value"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_by_name(capsys, name):
    words, message = WRONG[name]
    code, out, err = dry_run(capsys, *words)
    assert (code, out) == (2, "") and message in err and err.startswith("course dry-run: ")


BROKEN = {
    "another family": ({"model_type": "gpt_neox"}, [], "is none of gpt2", "Give sizes: --hidden"),
    "beside sizes": (GPT2, ["--hidden", 24], "--hidden is a size, but --config sets all sizes", ""),
    "longer than it goes": (GPT2, ["--length", 41], "longer than the 40 tokens of --config", ""),
    "another trait": (
        {**GPT2, "scale_attn_by_inverse_layer_idx": True}, [], "scale_attn_by_inverse_layer", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_config_that_is_no_such_model_is_refused(capsys, tmp_path, name):
    keys, words, *messages = BROKEN[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(keys))
    code, out, err = dry_run(capsys, "--world", 2, "--config", file, *words)
    assert (code, out) == (2, "") and all(message in err for message in messages)


def test_formulas_that_differ_are_a_finding(capsys, monkeypatch):
    monkeypatch.setattr(dry.DryRun, "differences", lambda self: ["held 1, but by formula 2"])
    code, out, _ = dry_run(capsys, "--world", 2, *SIZES)
    assert code == 1 and "the closed forms differ: held 1, but by formula 2" in out
