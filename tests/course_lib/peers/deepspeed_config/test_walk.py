"""`course ladder` as people call it: what is typed, what is printed, what is left in a folder."""

from __future__ import annotations

import itertools
import json

import pytest

from course_lib.estimate import ladder
from course_lib.estimate.setting import Setting
from course_lib.gpt import Config
from course_lib.peers.deepspeed_config.ours import train
from course_lib.peers.deepspeed_config.sizes import nbytes
from course_lib.train.checks import resolve
from course_lib.train.options import parse
from tests.support.commands import called

GPT2 = Config.gpt2(vocabulary=600, length=64, hidden=96, layers=4, heads=4)
LLAMA = Config.llama(vocabulary=400, length=64, hidden=96, layers=3, heads=4, kv_heads=2, inner=256)
KEYS = {
    "model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "vocab_size": 2000, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
PARAMS = 2_096_448
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
    assert config["zero_optimization"]["stage"] == 2 and config["train_batch_size"] == "auto"
    code, out, _ = course(capsys, "--config", model, *words, "--no-trainer")
    files = json.loads(out)["files"]
    assert sorted(files) == sorted(FILES[:-1])
    assert json.loads(files["ds_config.json"])["train_batch_size"] == 32
    assert any("FSDP2 has no stage 2" in note for note in document["notes"])
    assert document["deepspeed"]["gpu_bytes"] == sum(document["deepspeed"]["gpu"].values())


def test_host_memory_counts_where_it_is_named(capsys, model):
    words = ("--gpu-memory", "15.5MB", "--gpus", 4, "--json")
    code, out, _ = course(capsys, "--config", model, *words, "--host-memory", "34MB")
    document = json.loads(out)
    away = document["rungs"][document["first"]]
    assert code == 0 and away["rung"] == "stage 2 + offload_optimizer cpu"
    assert away["host_bytes"] == 16 * document["deepspeed"]["ranks_of_a_host"] * PARAMS // 4
    code, out, _ = course(capsys, "--config", model, *words, "--host-memory", "33MB")
    assert code == 1 and json.loads(out)["first"] is None  # files want buffers on the host


def test_where_nothing_fits_it_says_how_many_gpus_would(capsys, model):
    words = ("--gpu-memory", "15.5MB", "--gpus-per-node", 2, "--host-memory", "10MB")
    code, out, err = course(capsys, "--config", model, *words, "--gpus", 2, "--json")
    document = json.loads(out)
    assert code == 1 and document["first"] is None and "files" not in document and not err
    needed = document["gpus_needed"]
    assert needed % 2 == 0 and f"On {needed} GPUs" in document["answer"]
    for gpus, want in ((needed, 0), (needed - 2, 1)):
        assert course(capsys, "--config", model, *words, "--gpus", gpus, "--json")[0] == want
    code, out, _ = course(capsys, "--config", model, *words, "--gpus", 2)
    assert code == 1 and out.startswith("Nothing fits. The leanest rung needs")


def test_where_no_number_of_gpus_is_enough_it_says_so(capsys, model):
    code, out, _ = course(capsys, "--config", model, "--gpu-memory", "7MB", "--json")
    document = json.loads(out)
    assert code == 1 and document["gpus_needed"] is None
    assert "no number of GPUs changes that" in document["answer"]
    shorter = ("--length", document["longest"], "--json")
    assert course(capsys, "--config", model, "--gpu-memory", "7MB", *shorter)[0] == 0


def test_a_quantized_checkpoint_is_counted_unquantized(capsys, model):
    words = ("--config", model, "--gpu-memory", 24)
    plain = course(capsys, *words)[1]
    model.write_text(
        json.dumps(KEYS | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    text = course(capsys, *words)[1]
    assert "quantization_config is left out" in text and text.split("\n")[0] == plain.split("\n")[0]


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


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_rung_is_a_run_of_course_train(config, precision):
    for name, setting in ladder.settings(4, precision):
        argv = train(config, config.length, 2, setting)
        options = resolve(parse(argv), 2)
        sizes = {k: v for k, v in options.config().as_dict().items() if k != "recompute"}
        assert sizes == {k: v for k, v in config.as_dict().items() if k != "recompute"}, name
        assert options.stage == setting.stage and options.recompute == setting.recompute
        assert options.rows == 8 and options.micro_rows == 2 * setting.rows
        assert options.precision == setting.precision
        assert options.fast == (setting.stage == 3 and not setting.lean)


def test_what_course_train_does_not_make_has_no_run():
    for changes in ({"dropout": 0.1}, {"tied": False}):
        assert train(GPT2.changed(**changes), 64, 1, Setting(1)) is None
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
    assert nbytes(text, "--gpu-memory") == want


@pytest.mark.parametrize(
    "text", ["0", "nan", "inf", "-24", "", "GB", "24 parsecs", "1e999", "0.0000000001", "2 4"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="--gpu-memory"):
        nbytes(text, "--gpu-memory")


def test_wrong_calls_end_with_2_and_a_sentence(capsys, model, tmp_path):
    broken, parts = tmp_path / "broken.json", tmp_path / "parts.json"
    broken.write_text("{not json")
    parts.write_text('{"model_type": "encoder-decoder"}')
    good = ("--config", model, "--gpu-memory", 24)
    for words, reason in (
        (("--config", tmp_path / "none.json", "--gpu-memory", 24), "is not there"),
        (("--config", broken, "--gpu-memory", 24), "broken.json"),
        (("--config", parts, "--gpu-memory", 24), "makes no model of model_type='encoder-decoder'"),
        (("--config", model, "--gpu-memory", "nan"), "--gpu-memory 'nan' is not a size"),
        ((*good, "--gpus", 0), "--gpus 0 has to be 1 or more"),
        ((*good, "--gpus", 10**9), "--gpus 1,000,000,000: more than 262,144 GPUs"),
        (
            (*good, "--gpus", 12, "--gpus-per-node", 8),
            "does not fill nodes of 8 GPUs: take 8 or 16",
        ),
        ((*good, "--length", -5), "--length -5"),
        ((*good, "--length", 9000), "longer than the 256 tokens"),
        ((*good, "--precision", "int8"), "--precision int8 is none of"),
        ((*good, "--write", model), "config.json"),
    ):
        code, out, err = course(capsys, *words)
        assert code == 2 and not out, (words, code, out)
        assert err.startswith("course ladder: ") and reason in err, (words, err)
        assert "Traceback" not in err and len(err.splitlines()) == 1
