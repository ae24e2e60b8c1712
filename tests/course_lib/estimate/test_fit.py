"""`course estimate`'s stages: bytes against the exact count, cards, and what a person types."""

from __future__ import annotations

import json

import pytest
import torch

from course_lib.estimate import deepspeed, fit, states
from course_lib.estimate.model import Model
from course_lib.estimate.setting import Setting, of_each
from course_lib.estimate.shape import shape_of
from course_lib.gpt import Config
from tests.support.commands import called

LLAMA = Config.llama(vocabulary=400, length=64, hidden=96, layers=6, heads=4, kv_heads=2, inner=256)
MODEL = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600}
MODEL |= {"n_layer": 48, "n_head": 25}


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_way_is_what_the_exact_count_says(n, precision, tmp_path):
    """But for padding, counters, and the windows that files are read through."""
    shape = shape_of(LLAMA)
    for stage, optimizer, parameters in [*fit.WAYS, (3, None, "cpu")]:
        away = {"optimizer": optimizer, "parameters": parameters}
        setting = Setting(1, stage=stage, precision=precision, **away)
        got = [each * shape.params for each in of_each(setting, n)]
        plan = setting.offload and {**setting.offload}
        if plan and "folder" in plan:
            plan["folder"] = tmp_path
        held = states(
            LLAMA, stage=stage, n=n, precision=precision, offload=plan, persist=0,
            bucket_bytes=1 << 20,
        )  # fmt: skip
        tiers = held.by_tier(alive=True)
        host = tiers["host"] - held.by_kind().get("staging", 0)
        for mine, want in zip(got, (tiers["device"], host, tiers["disk"]), strict=True):
            room = 0.12 if "nvme" in (optimizer, parameters) else 0.02  # whole pages
            assert mine == pytest.approx(want, rel=room, abs=6000), (setting, got, tiers)


def test_a_layer_in_use_is_whole_and_activations_are_added():
    plain, more = fit.fits(10**6, 0, 8, 1), fit.fits(10**6, 10**5, 8, 1, activations=12345)
    for a, b in zip(plain, more, strict=True):
        assert b.gpu - a.gpu == 12345 + (4 * 10**5 if a.stage == 3 else 0)


def test_a_host_has_the_bytes_of_its_gpus():
    for one, node in zip(fit.fits(10**6, 0, 1, 8), fit.fits(10**6, 0, 8, 1), strict=True):
        assert (node.gpu, node.host, node.disk) == (one.gpu, 8 * one.host, 8 * one.disk)


def test_a_card_is_counted_in_its_own_gb():
    """Both units: a card's 10^9 bytes are fewer than as many GiB."""
    way = fit.Fit(3, None, None, states=79 * 2**30, activations=None, host=0, disk=0)
    assert way.cards == [141]  # 84.8e9 bytes: 79 GiB are no 80 GB
    assert fit.Fit(3, None, None, 24 * 10**9, None, 0, 0).cards == [24, 40, 80, 141]
    assert fit.Fit(3, None, None, 23 * 10**9, 10**9 + 1, 0, 0).cards == [40, 80, 141]
    assert fit.Fit(3, None, None, 142 * 10**9, None, 0, 0).cards == []


@pytest.mark.parametrize(
    ("text", "want"),
    [("7e9", 7 * 10**9), ("7B", 7 * 10**9), ("350M", 350_000_000), ("2783959040", 2783959040),
     ("1.5b", 1_500_000_000), ("65_536", 65536), ("2,048", 2048), ("1,048,576", 1 << 20),
     ("3k", 3000), ("1T", 10**12),
     ("-5", -5)],
)  # fmt: skip
def test_numbers_as_people_write_them(text, want):
    assert fit.count(text, "--params") == want


NO_NUMBERS = "seven", "", "7X", "1.5", "nan", "inf", "0.3K5", "B"
OF_COMMAS_AND_BOUNDS = "7,5B", "1,5e9", "2,48", "1e19", "1e99999999"


@pytest.mark.parametrize("text", [*NO_NUMBERS, *OF_COMMAS_AND_BOUNDS])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="--params"):
        fit.count(text, "--params")


# ---- typed
def course(capsys, *words) -> tuple[int, str, str]:
    return called(capsys, "estimate", *words)


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    return file


def test_the_document_has_both_tables(capsys, model):
    words = ("--gpus", 8, "--nodes", 2, "--tp", 5, "--json")
    code, out, err = course(capsys, "--config", model, *words)
    assert code == 2 and "tp=5 does not divide the 16 GPUs" in err and not out
    words = ("--gpus", 4, "--nodes", 5, "--tp", 5, "--rows", 2, "--length", 512, "--json")
    code, out, err = course(capsys, "--config", model, *words)
    assert (code, err) == (0, "")
    document = json.loads(out)
    ways = [(one["stage"], one["offload_optimizer"]) for one in document["stages"]]
    assert ways == [(stage, optimizer or "none") for stage, optimizer, _ in fit.WAYS]
    sizes = {"vocabulary": 50257, "length": 1024, "hidden": 1600, "layers": 48, "heads": 25}
    config = Config.gpt2(**sizes)
    table = deepspeed.table(1557611200, 50257 * 1600, 4, 5)
    assert document["rows"] == [row.as_dict() for row in table]
    kept = Model.read(model).kept(2, 512, torch.bfloat16, tp=5).peak
    own = fit.params_of_rank(config, 5)
    want = fit.fits(own, -(-50257 * 1600 // 5), 4, 5, tp=5, activations=kept)
    assert document["stages"] == [way.as_dict() for way in want]


def test_the_answer_names_the_first_way_that_fits(capsys):
    size = ("--params", "7B", "--largest-layer", "131M")
    in_all = course(capsys, *size, "--gpus", 16, "--gpus-per-node", 8, "--json")[1]
    assert in_all == course(capsys, *size, "--gpus", 8, "--nodes", 2, "--json")[1]
    for memory, first in (
        ("200GB", "stage 0"),
        ("30", "stage 1, states on cpu"),
        ("16", "stage 2, states on cpu"),
    ):
        code, out, _ = course(capsys, *size, "--gpus", 16, "--gpu-memory", memory)
        assert code == 0 and out.startswith(f"It fits with {first}: "), out
    assert course(capsys, *size, "--gpu-memory", "0.1GiB")[1].startswith("Nothing fits: the small")


def test_recompute_and_sequence_take_fewer_bytes(capsys, model):
    def acts(*words):
        done = course(
            capsys, "--config", model, "--gpus", 5, "--tp", 5, "--rows", 4, "--json", *words
        )
        return json.loads(done[1])["stages"][0]["activation_bytes"]

    assert acts("--recompute") < acts("--sequence") < acts()
    assert acts("--recompute", "--sequence") < acts("--recompute")
    assert acts("--length", 512) < acts() / 2 + 1e6


def test_wrong_calls_end_with_2_and_a_sentence(capsys, model, tmp_path):
    no_json, list_ = (tmp_path / name for name in ("a.json", "b.json"))
    no_json.write_text("{not json")
    list_.write_text("[1, 2]")
    two = ("--stage", 2)
    for words, reason in (
        ((), "--params is missing"),
        (("--params", 5), "--largest-layer is missing"),
        (("--params", 5, "--largest-layer", 1, "--gpus", 0), "gpus=0"),
        (("--params", 5, "--largest-layer", 1, "--stage", 1), "stages 2 and 3"),
        (("--config", tmp_path / "none.json"), "none.json is not there"),
        (("--config", "x", "--params", 5), "already contains both numbers"),
        (("--params", "-7B", *two), "params=-7000000000 has to be"),
        (("--params", "7B", "--largest-layer", "8B"), "cannot be larger than its model"),
        (("--params", "7B", *two, "--tp", 3, "--gpus", 8), "tp=3 does not divide the 8 GPUs"),
        (("--params", "7B", *two, "--rows", 4), "name it (--config)"),
        (("--config", model, "--tp", 2, "--gpus", 2, "--sequence"), "add --rows"),
        (("--config", model, "--rows", 2, "--sequence"), "add --tp"),
        (("--config", model, "--rows", 2, "--length", 2000), "longer than the 1024 tokens"),
        (("--config", model, "--tp", 32, "--gpus", 32), "heads"),
        (("--params", 5, *two, "--gpus", 8, "--gpus-per-node", 3), "does not fill nodes of 3"),
        (("--params", 5, *two, "--gpus-per-node", 8, "--nodes", 2), "leave one of them out"),
        (("--params", 5, *two, "--gpus-per-node", "-1"), "--gpus-per-node -1 must be 1 or more"),
        (("--params", 5, *two, "--gpu-memory", "22,4"), "is not a size"),
        (("--config", no_json), "a.json"),
        (("--config", list_), "holds a JSON list"),
    ):
        code, out, err = course(capsys, *words)
        assert code == 2 and not out, (words, code, out)
        assert err.startswith("course estimate: ") and reason in err, (words, err)
