"""`course ladder` as people call it: what is typed, what is printed, what is left in a folder."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from course_lib.estimate import ladder
from course_lib.estimate.setting import Setting
from course_lib.gpt import Config
from course_lib.peers.deepspeed_config import walk
from course_lib.peers.deepspeed_config.ours import train
from course_lib.pretrained.config import to_transformers
from course_lib.train.checks import resolve
from course_lib.train.options import parse
from tests.support.commands import called

GPT2 = Config.gpt2(vocabulary=600, length=64, hidden=96, layers=4, heads=4)
LLAMA = Config.llama(vocabulary=400, length=64, hidden=96, layers=3, heads=4, kv_heads=2, inner=256)
KEYS = {  # 2.1 million parameters
    "model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "vocab_size": 2000, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
ENOUGH = 155 * 10**5  # bytes of a GPU, for stage 2 + offload_optimizer
FILES = ["ds_config.json", "accelerate_deepspeed.yaml", "fsdp2.py", "accelerate_fsdp2.yaml"]
FILES += ["training_arguments.json"]


def course(capsys, *words) -> tuple[int, str, str]:
    return called(capsys, "ladder", *words)


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(KEYS))
    return file


def task_of(config: Config, folder, memory: str, **more) -> walk.WalkTask:
    (folder / "config.json").write_text(json.dumps(to_transformers(config, torch.float32)))
    how = {"gpus": 1, "nodes": 1, "rows": 4, "length": 0, "precision": "float32", **more}
    return walk.WalkTask.read(folder, memory, None, **how)


def test_the_document_has_every_rung_and_the_first_that_fits(capsys, model):
    words = ("--gpu-memory", "15.5MB", "--gpus", 4, "--json")
    code, out, err = course(capsys, "--config", model, *words)
    assert (code, err) == (0, "")
    document = json.loads(out)
    rungs = document["rungs"]
    assert [rung["stage"] for rung in rungs] == [0, 0, 0, 2, 2, 3, 3, 3, 3, 3]
    first = document["first"]
    assert rungs[first]["rung"] == "stage 2 + offload_optimizer cpu"
    assert all(rung["fits"] == (rung["gpu_bytes"] <= ENOUGH) for rung in rungs)
    assert not any(rung["fits"] for rung in rungs[:first])
    for before, rung in itertools.pairwise(rungs):
        assert rung["saves_bytes"] == before["gpu_bytes"] - rung["gpu_bytes"]
    assert sorted(document["files"]) == sorted(FILES)
    config = json.loads(document["files"]["ds_config.json"])
    assert config["zero_optimization"]["stage"] == 2 and config["train_batch_size"] == 32
    assert any("FSDP2 has no stage 2" in note for note in document["notes"])
    assert document["deepspeed"]["gpu_bytes"] == sum(document["deepspeed"]["gpu"].values())


def test_host_memory_counts_where_it_is_named(capsys, model):
    words = ("--gpu-memory", "15.5MB", "--gpus", 4, "--json")
    code, out, _ = course(capsys, "--config", model, *words, "--host-memory", "30MB")
    document = json.loads(out)
    rung = document["rungs"][document["first"]]
    assert code == 0 and rung["offload_optimizer"] == "nvme"  # 16 bytes a parameter are too many
    assert rung["host_bytes"] <= 30 * 10**6 < document["rungs"][4]["host_bytes"]
    config = json.loads(document["files"]["ds_config.json"])
    assert config["zero_optimization"]["offload_param"]["nvme_path"] == "/local_nvme"


def test_where_nothing_fits_it_says_how_many_gpus_would(capsys, model):
    words = ("--gpu-memory", "15.5MB", "--gpus", 2, "--host-memory", "10MB")
    code, out, err = course(capsys, "--config", model, *words, "--json")
    document = json.loads(out)
    assert code == 1 and document["first"] is None and "files" not in document and not err
    needed = document["gpus_needed"]
    assert needed % 2 == 0 and f"on {needed} GPUs" in document["advice"]
    again = course(capsys, "--config", model, *words, "--nodes", needed // 2, "--json")
    assert again[0] == 0
    assert course(capsys, "--config", model, *words, "--nodes", needed // 2 - 1, "--json")[0] == 1
    code, out, _ = course(capsys, "--config", model, *words)
    assert code == 1 and "Nothing fits. The last rung needs" in " ".join(out.split())


def test_where_no_number_of_gpus_is_enough_it_says_so(capsys, model):
    code, out, _ = course(capsys, "--config", model, "--gpu-memory", "7MB", "--json")
    document = json.loads(out)
    assert code == 1 and document["gpus_needed"] is None
    assert "no number of GPUs changes that" in document["advice"]
    shorter = ("--length", document["longest"], "--json")
    assert course(capsys, "--config", model, "--gpu-memory", "7MB", *shorter)[0] == 0


def test_settings_are_left_in_a_folder_and_nothing_is_lost(capsys, model, tmp_path):
    folder = tmp_path / "new" / "one"
    words = ("--config", model, "--gpu-memory", 24, "--gpus", 4, "--write", folder)
    code, out, _ = course(capsys, *words)
    assert code == 0 and "Written: " in out
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert course(capsys, *words)[0] == 0  # the same once more
    config = folder / "ds_config.json"
    config.write_text("{}")
    code, _, err = course(capsys, *words)
    assert code == 2 and "ds_config.json is there already" in err and config.read_text() == "{}"


def test_another_family_has_its_states_alone(capsys, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=1000
    ).save_pretrained(tmp_path)
    words = ("--config", tmp_path, "--gpu-memory", "20MB", "--gpus", 2)
    code, out, _ = course(capsys, *words, "--json")
    document = json.loads(out)
    assert code == 0 and document["activations"] is False
    assert all(rung["activation_bytes"] is None for rung in document["rungs"])
    assert all(rung["train"] is None for rung in document["rungs"])
    text = course(capsys, *words)[1]
    assert "States alone" in text and "'t5'" in text
    assert "The first whose states fit" in text and "The first that fits" not in text


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_rung_is_a_run_of_course_train(config, precision, tmp_path):
    task = task_of(config, tmp_path, "1", gpus=2, precision=precision)
    for name, setting in ladder.settings(task.rows, precision):
        argv = train(task.model, task.length, 2, setting)
        options = resolve(parse(argv), 2)
        sizes = {k: v for k, v in options.config().as_dict().items() if k != "recompute"}
        assert sizes == {k: v for k, v in config.as_dict().items() if k != "recompute"}, name
        assert options.stage == setting.stage and options.recompute == setting.recompute
        assert options.rows == 8 and options.micro_rows == 2 * setting.rows
        assert options.precision == setting.precision
        assert options.fast == (setting.stage == 3 and not setting.lean)


def test_the_commands_of_the_first_and_the_one_before_are_shown(capsys, tmp_path):
    task = task_of(GPT2, tmp_path, "1", gpus=2)
    needs = [rung.needs.gpu for rung in walk.walk(task).rungs]
    words = ("--config", tmp_path, "--gpus", 2, "--rows", 4, "--precision", "float32")
    out = course(capsys, *words, "--gpu-memory", f"{needs[4]}B")[1]
    shown = [line.split()[2:] for line in out.splitlines() if line.startswith("course train ")]
    assert [resolve(parse(argv), 2).offload for argv in shown] == ["none", "cpu"]
    assert [resolve(parse(argv), 2).stage for argv in shown] == [2, 2]
    assert len(walk.walk(task).runs) == 1  # the very first rung fits: none is before it


def test_what_course_train_does_not_make_has_no_run(tmp_path):
    for changes in ({"dropout": 0.1}, {"tied": False}):
        task = task_of(GPT2.changed(**changes), tmp_path, "1")
        assert train(task.model, task.length, 1, Setting(1)) is None
    assert train(GPT2, 32, 1, Setting(1)) is None
    assert train(LLAMA, 32, 1, Setting(1))


# ---- typed
@pytest.mark.parametrize(
    ("text", "want"),
    [("24", 24 * 10**9), ("24GB", 24 * 10**9), (" 24 gb ", 24 * 10**9), ("1GiB", 1 << 30),
     ("50MB", 5 * 10**7), ("0.05", 5 * 10**7), (".5", 5 * 10**8), ("2e3MB", 2 * 10**9),
     ("512KiB", 1 << 19)],
)  # fmt: skip
def test_sizes_as_people_write_them(text, want):
    assert walk.nbytes(text, "--gpu-memory") == want


@pytest.mark.parametrize(
    "text", ["0", "nan", "inf", "-24", "", "GB", "24 parsecs", "1e999", "0.0000000001", "2 4"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="--gpu-memory"):
        walk.nbytes(text, "--gpu-memory")


def test_wrong_calls_end_with_2_and_a_sentence(capsys, model, tmp_path):
    broken, parts = tmp_path / "broken.json", tmp_path / "parts.json"
    broken.write_text("{not json")
    parts.write_text('{"model_type": "encoder-decoder"}')
    good = ("--config", model, "--gpu-memory", 24)
    for words, reason in (
        (("--config", tmp_path / "none.json", "--gpu-memory", 24), "is not there"),
        (("--config", broken, "--gpu-memory", 24), "broken.json"),
        (("--config", parts, "--gpu-memory", 24), "makes no model of model_type='encoder-decoder'"),
        (("--config", model, "--gpu-memory", "nan"), "--gpu-memory 'nan' is no size"),
        ((*good, "--gpus", 0), "--gpus 0 has to be 1 or more"),
        ((*good, "--gpus", 10**5, "--nodes", 10), "--nodes, 1,000,000: more than 262,144 GPUs"),
        ((*good, "--length", -5), "--length -5"),
        ((*good, "--length", 9000), "longer than length=256"),
        ((*good, "--precision", "int8"), "--precision int8 is none of"),
        ((*good, "--write", model), "config.json"),
    ):
        code, out, err = course(capsys, *words)
        assert code == 2 and not out, (words, code, out)
        assert err.startswith("course ladder: ") and reason in err, (words, err)
        assert "Traceback" not in err and len(err.splitlines()) == 1
