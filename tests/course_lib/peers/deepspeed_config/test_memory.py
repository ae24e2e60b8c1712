"""What a DeepSpeed file is forecast to take: the documented figures, the estimates' own bytes."""

from __future__ import annotations

import json

import pytest
import torch

from course_lib.estimate import states
from course_lib.estimate.model import Model
from course_lib.estimate.shape import shape_of
from course_lib.estimate.transformers_model import TransformersModel
from course_lib.gpt import Config
from course_lib.peers.deepspeed_config.memory import forecast
from course_lib.pretrained.config import to_transformers
from tests.support.commands import called

CONFIG = Config.llama(
    vocabulary=5000, length=128, hidden=256, layers=4, heads=4, kv_heads=2, inner=640
)
KEYS = to_transformers(CONFIG, torch.float32)
ZERO = "zero_optimization"
NONE = {"reduce_bucket_size": 1, "allgather_bucket_size": 1}


def of(zero: dict, world: int = 4, model=KEYS, **more):
    top = {key: more.pop(key) for key in list(more) if key in ("bf16", "fp16")}
    top = top or {"bf16": {"enabled": True}}
    return forecast({**top, ZERO: zero, **more}, model, world)


@pytest.mark.parametrize(("n", "half"), [(1, False), (4, True)])
@pytest.mark.parametrize(
    ("stage", "plan"),
    [(0, {}), (1, {}), (2, {}), (3, {}), (2, {"optimizer": "cpu"}), (3, {"optimizer": "cpu"}),
     (3, {"parameters": "cpu"}), (3, {"optimizer": "cpu", "parameters": "cpu"}),
     (3, {"optimizer": "nvme", "parameters": "nvme"})],
)  # fmt: skip
def test_states_are_those_of_the_exact_count(n, half, stage, plan, tmp_path):
    """But for padding, counters, and the windows that files are read through."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    for name, section in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        if name in plan:
            zero[section] = {"device": plan[name]}
    got = of(zero, n, bf16={"enabled": half})
    where = {"folder": tmp_path} if "nvme" in plan.values() else {}
    want = states(
        CONFIG, stage=stage, n=n, precision="bfloat16" if half else "float32",
        offload={"optimizer": None, **plan, **where} if plan else None, persist=0,
    )  # fmt: skip
    tiers = want.by_tier(alive=True)
    assert got.gpu["states"] == pytest.approx(tiers["device"], rel=0.01, abs=3000)
    host = tiers["host"] - want.by_kind().get("staging", 0)
    assert got.host["states"] == pytest.approx(host, rel=0.01, abs=3000)
    assert got.disk["states"] == pytest.approx(tiers["disk"], rel=0.03, abs=3000)
    assert got.total("host") == sum(got.host.values()) * n


def test_buckets_times_four_and_a_half():
    """The pages' figures: 5e8 take 9 GB with overlap, 2e8 take 3.6."""
    for size, want in ((5e8, 9e9), (2e8, 3.6e9)):
        zero = {"stage": 2, "reduce_bucket_size": size, "allgather_bucket_size": size}
        assert of({**zero, "overlap_comm": True}).gpu["buckets"] == want
        assert of(zero).gpu["buckets"] == pytest.approx(want / 4.5)  # below stage 3 no overlap
    assert of({"stage": 2, "overlap_comm": True}).gpu["buckets"] == 9e9  # the defaults are 5e8
    assert of({"stage": 3, "reduce_bucket_size": 10**6}).gpu["buckets"] == 9e6  # overlaps by itself
    assert "buckets" not in of({"stage": 0}).gpu


def test_what_may_stay_whole_at_stage_3():
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    params = shape_of(CONFIG).params
    largest = CONFIG.vocabulary * CONFIG.hidden
    assert of(zero).gpu["live parameters"] == 2 * params  # 1e9 are more than there are
    less = of(
        {**zero, "stage3_max_live_parameters": 2 * 10**6, "stage3_prefetch_bucket_size": 7000}
    )
    assert less.gpu["live parameters"] == 4 * 10**6 and less.gpu["prefetched parameters"] == 14_000
    least = of({**zero, "stage3_max_live_parameters": 0})
    assert least.gpu["live parameters"] == 2 * largest  # the layer in use is whole
    assert least.gpu["gradients of a layer"] == 2 * largest
    norms = (2 * CONFIG.layers + 1) * CONFIG.hidden
    persistent = of({**zero, "stage3_param_persistence_threshold": CONFIG.hidden + 1})
    assert persistent.gpu["persistent parameters"] == 2 * norms * 3 // 4  # a fourth is its own
    assert of({"stage": 2}).gpu.keys() == {"states", "buckets", "activations"}


def test_activations_are_those_of_a_micro_batch():
    one, two = (of({"stage": 2}, train_micro_batch_size_per_gpu=rows) for rows in (1, 2))
    form = Model(KEYS).kept(1, CONFIG.length, torch.bfloat16)
    assert one.gpu["activations"] == form.peak > sum(form.blocks)
    assert 1.9 < two.gpu["activations"] / one.gpu["activations"] < 2  # the angles are there once
    again = forecast({ZERO: {"stage": 2}, "bf16": {"enabled": True}}, KEYS, 1, recompute=True)
    assert again.gpu["activations"] < one.gpu["activations"]
    short = forecast({ZERO: {"stage": 2}, "bf16": {"enabled": True}}, KEYS, 1, length=64)
    assert short.gpu["activations"] < 0.6 * one.gpu["activations"]


def test_where_a_forward_cannot_be_counted_the_states_are(monkeypatch):
    monkeypatch.setattr(TransformersModel, "kept", lambda *_, **__: 1 // 0)
    got = of({"stage": 3}, 2)
    assert "activations" not in got.gpu and got.left_out[0].startswith("activations")
    assert "does not run without data (integer division" in got.left_out[0]


def test_what_is_still_auto_is_named_and_counts_as_the_default():
    got = of({"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"})
    assert got.gpu["buckets"] == 9e9
    assert any("reduce_bucket_size" in text and "auto" in text for text in got.left_out)


def test_offload_below_its_stage_moves_nothing():
    """As DeepSpeed: parameters stay below stage 3, everything at stage 0."""
    plain = of({"stage": 2})
    assert of({"stage": 2, "offload_param": {"device": "cpu"}}).gpu == plain.gpu
    none = of({"stage": 0, "offload_optimizer": {"device": "cpu"}})
    assert none.gpu == of({"stage": 0}).gpu and none.total("host") == 0


def test_buffers_of_files_lie_on_the_host():
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
    zero["offload_param"] = {"device": "nvme", "buffer_count": 2, "buffer_size": 10**6}
    got = of(zero)
    assert got.host["offload_param buffers"] == 2 * 10**6 * 2
    assert got.host["offload_optimizer buffers"] == 4 * 4 * CONFIG.vocabulary * CONFIG.hidden
    assert got.disk["states"] > 0


@pytest.mark.parametrize(
    ("zero", "model", "world", "reason"),
    [({"stage": 5}, KEYS, 1, "stage=5"), ({}, KEYS, 0, "world=0"),
     ({}, {"model_type": "no"}, 1, "model_type='no'"), ({}, "/nowhere", 1, "is not there")],
)  # fmt: skip
def test_what_cannot_be_is_refused(zero, model, world, reason):
    with pytest.raises(ValueError, match=reason):
        of(zero, world, model)


@pytest.mark.parametrize("odd", ["much", None, [], {}, True, -5, float("nan"), float("inf")])
def test_a_value_that_is_none_counts_as_the_default(odd):
    """What is wrong with it the checker says."""
    keys = ("reduce_bucket_size", "overlap_comm", "stage3_max_live_parameters", "offload_param")
    keys += ("stage3_param_persistence_threshold", "stage3_prefetch_bucket_size")
    plain = of({"stage": 3}).gpu
    got = of({"stage": 3, **dict.fromkeys(keys, odd)}, train_micro_batch_size_per_gpu=odd).gpu
    if odd is not True:  # communication overlaps at stage 3 in any case, unless it shall not
        plain = of({"stage": 3, "overlap_comm": odd}).gpu
    assert got == plain


# ---- course ds-check --memory
def ds_check(capsys, *words) -> tuple[int, str, str]:
    return called(capsys, "ds-check", *words)


@pytest.fixture
def files(tmp_path):
    file, model, args = (tmp_path / name for name in ("ds.json", "config.json", "args.json"))
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, ZERO: {"stage": 2}}
    config[ZERO]["reduce_bucket_size"] = "auto"
    file.write_text(json.dumps(config))
    model.write_text(json.dumps(KEYS))
    args.write_text(json.dumps({"gradient_checkpointing": True, "bf16": True}))
    return file, model, args


def test_the_checker_forecasts_what_it_has_resolved(capsys, files):
    file, model, args = files
    words = (file, "--world", 8, "--model", model, "--memory")
    _, out, _ = ds_check(capsys, *words, "--json")
    want = forecast(json.loads(file.read_text()), model, 8)
    assert json.loads(out)["memory"] == want.as_dict()
    _, out, _ = ds_check(capsys, *words)
    assert " ".join(want.lines()[0].split()) in " ".join(out.split())
    again = json.loads(ds_check(capsys, *words, "--args", args, "--json")[1])["memory"]
    assert again["gpu"]["activations"] < want.gpu["activations"]
    assert again["gpu"]["buckets"] == 2 * (CONFIG.hidden**2 + 5 * 10**8)  # as the Trainer does
    assert "memory" not in json.loads(ds_check(capsys, file, "--json")[1])
    short = ds_check(capsys, *words, "--length", 64, "--gpu-memory", "1GiB")[1]
    assert short.index("It does not fit: ") < short.index("Assumed: 8 GPUs, 1 row of 64 tokens")
    assert "It fits: " in ds_check(capsys, *words, "--gpu-memory", 80)[1]
    code, _, err = ds_check(capsys, file, "--length", 64)
    assert code == 2 and "belong to --memory" in err


def test_a_forecast_that_cannot_be_is_no_traceback(capsys, files):
    file, model, _ = files
    code, out, err = ds_check(capsys, file, "--memory")
    assert code == 2 and not out and "name its config.json with --model" in err
    file.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 7}}))
    code, out, err = ds_check(capsys, file, "--model", model, "--memory", "--json")
    assert code == 1 and json.loads(out)["memory"] is None and "no forecast: zero_opt" in err
    file.write_text("[]")
    code, out, _ = ds_check(capsys, file, "--model", model, "--memory", "--json")
    assert code == 1 and json.loads(out)["memory"] is None
