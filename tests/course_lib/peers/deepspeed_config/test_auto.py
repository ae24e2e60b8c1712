"""Each "auto" as the Trainer resolves it: held to the Trainer, and each value to its origin."""

from __future__ import annotations

import itertools
import json

import pytest

from course_lib.peers.deepspeed_config import auto
from course_lib.peers.deepspeed_config.auto import resolve
from tests.course_lib.peers.deepspeed_config.parts import answered
from tools import trainer_table

ZERO = auto.ZERO
EVERYTHING = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {
        "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {
        "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
        "total_num_steps": "auto"}},
    ZERO: {
        "stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto", "sub_group_size": "auto",
        "stage3_gather_16bit_weights_on_model_save": "auto",
        "offload_optimizer": {"device": "auto"}, "offload_param": {"device": "cpu"}},
}  # fmt: skip
STAGE_2 = {**EVERYTHING, ZERO: {**EVERYTHING[ZERO], "stage": 2}}
STATED = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.5,
    "fp16": {"enabled": True}, "bf16": {"enabled": False}, "steps_per_print": 10,
    "optimizer": {"type": "Adam", "params": {
        "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}},
    "scheduler": {"type": "WarmupLR", "params": {
        "warmup_min_lr": 0.1, "warmup_max_lr": 1e-3, "warmup_num_steps": 7, "total_num_steps": 9}},
    ZERO: {"stage": 1, "reduce_bucket_size": 1000},
}  # fmt: skip
BARE = {ZERO: {"stage": "auto", "reduce_bucket_size": "auto"}}
NO_ZERO = {"gradient_accumulation_steps": "auto"}
ARGUMENTS = [
    {},
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "learning_rate": 1e-3,
     "max_grad_norm": 0.5, "warmup_steps": 7, "max_steps": 40, "adam_beta2": 0.95},
    {"max_steps": 33, "warmup_steps": 0.1, "weight_decay": 0.01, "adam_epsilon": 1e-6,
     "bf16": True, "save_on_each_node": True},
    {"bf16_full_eval": True, "warmup_steps": 3.5, "max_steps": 9},
]  # fmt: skip
MODELS = [
    {"model_type": "llama", "hidden_size": 24, "num_attention_heads": 2},
    {"model_type": "gpt2", "n_embd": 36, "n_head": 3},
    {"model_type": "t5", "d_model": 20},
    {"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 96}},
    {"model_type": "llava", "text_config": {"model_type": "mistral"}},
    {"model_type": "llava"},
    {"model_type": "segformer", "hidden_sizes": [8, 32, 16]},
    {"model_type": "sam"},
]


def cases():
    """Each config with each of the arguments and a model in turn, on one rank or three."""
    models, worlds = itertools.cycle(MODELS), itertools.cycle((1, 3, 2))
    for config, arguments in itertools.product((EVERYTHING, STAGE_2, STATED, BARE), ARGUMENTS):
        yield config, arguments, next(models), next(worlds)
    for model in MODELS:
        yield EVERYTHING, ARGUMENTS[1], model, 2
    yield NO_ZERO, {}, MODELS[0], 1


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    """(case, what the Trainer made of it), for all cases."""
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    asked = [
        {"config": config, "arguments": arguments, "model": model, "world": world,
         "steps": arguments.get("max_steps", 50)}
        for config, arguments, model, world in cases()
    ]  # fmt: skip
    folder = str(tmp_path_factory.mktemp("trainer"))
    wanted = answered("tests.course_lib.peers.deepspeed_config.trainer_oracle", asked, folder)
    return list(zip(asked, wanted, strict=True))


def test_the_trainer_resolves_the_same(trainers):
    ends = 0
    for case, want in trainers:
        got = resolve(case["config"], case["arguments"], case["model"], case["world"])
        assert bool(got.refusals) == (want["config"] is None), (case, want, got.refusals)
        if want["config"] is None:
            ends += 1
            continue
        mine = dict(got.config)
        mine.pop("steps_per_print", None)
        known = "max_steps" in case["arguments"]
        for path in (auto.TOTAL, auto.WARMUP):
            if not known and got.unresolved.get(path):  # the Trainer was told its steps by the data
                key = path.split(".")[-1]
                mine["scheduler"]["params"][key] = want["config"]["scheduler"]["params"][key]
        assert mine == want["config"], case
        got_wrong = [[one.path, one.config, one.argument] for one in got.conflicts]
        want_wrong = [one for one in want["mismatches"] if known or one[0] != auto.TOTAL]
        assert sorted(map(str, got_wrong)) == sorted(map(str, want_wrong)), case
        assert bool(want["mismatches"]) == bool(want["ended"])
    assert ends == 4  # a model without a hidden size, and a file without a section of ZeRO's


def test_the_table_is_the_installed_releases():
    """A few kinds here, and all of them below."""
    transformers = pytest.importorskip("transformers")
    table = auto.table()
    if transformers.__version__ != table["transformers"]:
        pytest.skip(f"the table is of {table['transformers']}: {transformers.__version__} is here")
    fields = transformers.TrainingArguments.__dataclass_fields__
    assert table["arguments"] == {name: fields[name].default for name in trainer_table.READ}
    for config in (transformers.GPT2Config(), transformers.T5Config(), transformers.LlamaConfig()):
        name = config.attribute_map.get("hidden_size", "hidden_size")
        assert table["hidden_size"][config.model_type] == [name, config.hidden_size]


@pytest.mark.slow
def test_the_whole_table_is_the_installed_releases():
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != auto.table()["transformers"]:
        pytest.skip("another release")
    assert trainer_table.TABLE.read_text() == trainer_table.text(trainer_table.table())


# ---- where from
FULL = {"per_device_train_batch_size": 2, "max_steps": 40, "warmup_steps": 0.25}


def test_each_value_says_where_it_comes_from():
    got = resolve(EVERYTHING, FULL, {"hidden_size": 100}, 4)
    assert set(got.origins) == {path for path, _ in auto.leaves(EVERYTHING)}
    for path, origin in got.origins.items():
        *sections, key = path.split(".")
        here = got.config
        for name in sections:
            here = here[name]
        assert here[key] == origin.value
    said = {path: (one.value, one.origin) for path, one in got.origins.items()}
    size = "of --model, whose hidden_size is 100, as the Trainer does"
    assert said[f"{ZERO}.reduce_bucket_size"] == (10_000, f"hidden_size² {size}")
    prefetch = f"{ZERO}.stage3_prefetch_bucket_size"
    assert said[prefetch] == (9000, f"0.9 · hidden_size² {size}")
    assert said["train_batch_size"][0] == 8 and said["train_batch_size"][1].startswith("4 ranks · ")
    own = "per_device_train_batch_size of the Trainer's arguments"
    assert said["train_micro_batch_size_per_gpu"] == (2, own)
    assert "at its default in transformers 5" in said["gradient_clipping"][1]
    assert said["scheduler.params.warmup_num_steps"][0] == 10
    assert "as a fraction of max_steps 40" in said["scheduler.params.warmup_num_steps"][1]
    assert "Accelerate's default" in said[f"{ZERO}.offload_optimizer.device"][1]
    assert said["fp16.loss_scale"] == (0, auto.OF_THE_FILE)
    assert got.unresolved == {
        f"{ZERO}.sub_group_size": "the Trainer does not resolve this key, and Accelerate stops, so "
        "write a value"
    }


def test_nobody_resolves_without_the_trainer():
    before = json.dumps(EVERYTHING)
    got = resolve(EVERYTHING, None, {"hidden_size": 100}, 4)
    autos = {path for path, value in auto.leaves(EVERYTHING) if value == "auto"}
    assert set(got.unresolved) == autos and got.config == EVERYTHING
    assert all("only the Hugging Face Trainer" in why for why in got.unresolved.values())
    assert not got.conflicts and not got.refusals
    resolve(EVERYTHING, FULL, {"hidden_size": 100}, 4)
    assert json.dumps(EVERYTHING) == before  # the caller's own is left alone


def test_what_stays_says_why():
    got = resolve(STAGE_2, {}, None, 1).unresolved
    assert "only at stage 3" in got[f"{ZERO}.stage3_prefetch_bucket_size"]
    assert "--model" in got[auto.REDUCE] and "max_steps" in got[auto.TOTAL]
    assert auto.WARMUP not in got  # none: the least there is
    some = resolve(STAGE_2, {"warmup_steps": 0.1}, {"model_type": "sam"}, 1)
    assert "no hidden size" in some.unresolved[auto.REDUCE] and auto.WARMUP in some.unresolved
    assert "has no hidden_size or hidden_sizes" in some.refusals[0]


def test_conflicts_name_both_sides():
    got = resolve(STATED, {"learning_rate": 2e-3, "max_steps": 9, "warmup_steps": 7}, None, 3)
    found = {one.path: one for one in got.conflicts}
    lr = found["optimizer.params.lr"]
    assert (lr.config, lr.argument, lr.name) == (1e-3, 2e-3, "learning_rate")
    batch = found["train_batch_size"]
    assert (batch.config, batch.argument) == (16, 24) and "calculated" in batch.name
    assert auto.WARMUP not in found and auto.TOTAL not in found
    assert "scheduler.params.warmup_min_lr" not in found  # the Trainer only fills it


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"learning_rate": "5e-5"}, 'learning_rate is "5e-5", but must be a number'),
        ({"max_steps": 10.5}, "max_steps is 10.5, but must be a whole number"),
        ({"bf16": 1}, "bf16 is 1, but must be true or false"),
        ({"warmup_ratio": 0.1}, "Write it as warmup_steps"),
    ],
)
def test_arguments_that_are_none_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        resolve(EVERYTHING, arguments, None, 1)


def test_odd_files_are_left_to_the_checker():
    """A section that is none, a list, a number in place of a mapping: nothing is resolved in it."""
    odd = {ZERO: [1, 2], "optimizer": "AdamW", "fp16": None, "scheduler": {"params": 3}}
    assert resolve(odd, {}, {"hidden_size": "wide"}, 1).config == {
        **odd, "gradient_accumulation_steps": 1,
    }  # fmt: skip
