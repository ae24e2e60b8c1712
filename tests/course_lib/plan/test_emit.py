"""Each file of a plan is read by the program that it is for; the scripts and FSDP2's file run."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from course_lib.peers.deepspeed_config import check, schema
from course_lib.plan import search
from course_lib.plan.emit import cannot, files_of, first_that_can, words_of
from course_lib.train.checks import resolve
from course_lib.train.options import parse
from tests.course_lib.estimate.parts import SHORT
from tests.course_lib.peers.launchers.srun_here import stand_ins, variables
from tests.course_lib.plan.parts import CLUSTER, GPT2, LLAMA, searched, task_of

WIDE = CLUSTER.changed(memory=10**9)


def some(config, **more):
    """A plan of every cut, stage and offload, with the task."""
    found = search(task_of(config, WIDE, **more))
    kinds = {}
    for plan in found.plans:
        setting, place = plan.setting, plan.place
        key = place.tp, place.sequence, setting.stage, setting.optimizer, setting.parameters
        kinds.setdefault((*key, setting.recompute), plan)
    return found.task, list(kinds.values())


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def plans(request):
    return some({"gpt2": GPT2, "llama": LLAMA}[request.param])


def able(kind, plans):
    task, every = plans
    return task, [p for p in every if cannot(kind, p, task.model, task.length) is None]


def test_deepspeeds_file_is_found_sound(plans, tmp_path):
    """As DeepSpeed's own checks have it: the batch on so many ranks, no key without effect."""
    task, every = able("deepspeed", plans)
    known = schema.load()
    assert {(p.place.tp > 1, p.setting.stage) for p in every} >= {(True, 0), (True, 2), (False, 3)}
    for plan in every:
        files = files_of("deepspeed", plan, task)
        write(tmp_path, files)
        found = check.check_file(tmp_path / "ds_config.json", world=4, known=known)
        assert [item for item in found.findings if item.level != "hint"] == [], plan.name
        config = json.loads(files["ds_config.json"])
        assert config["train_micro_batch_size_per_gpu"] == plan.setting.rows
        assert config["gradient_accumulation_steps"] == plan.setting.accumulate
        assert config["zero_optimization"]["stage"] == plan.setting.stage
        assert ("train_batch_size" in config) == (plan.place.tp == 1)
        assert config.get("tensor_parallel", {}).get("autotp_size", 1) == plan.place.tp
        arguments = json.loads(files["training_arguments.json"])
        assert arguments["gradient_checkpointing"] is plan.setting.recompute


def test_the_commands_are_those_of_our_program(plans):
    task, every = able("torchrun", plans)
    assert len(every) > 20
    for plan in every:
        (text,) = files_of("torchrun", plan, task).values()
        words = shlex.split(text.partition("course_lib.train ")[2].replace('"$@"', ""))
        options = resolve(parse(words), 4)
        assert (options.tp, options.sequence) == (plan.place.tp, plan.place.sequence)
        assert (options.stage, options.recompute) == (plan.setting.stage, plan.setting.recompute)
        assert options.rows == 16 and options.accumulate == plan.setting.accumulate
        away = options.offload if plan.setting.stage < 3 or options.offload_optimizer else "none"
        assert away == (plan.setting.optimizer or "none"), plan.name
        config, own = options.config(), task.model.config
        assert (config.hidden, config.layers, config.inner) == (own.hidden, own.layers, own.inner)
        assert "--standalone --nproc-per-node 4" in text and "--ranks" not in text


def test_scripts_of_several_nodes(plans):
    task, every = able("slurm", plans)
    wide = replace(task, gpus=8, tokens=2 * task.tokens)
    for plan in every[:4]:
        two = replace(plan, place=replace(plan.place, dp=2 * plan.place.dp))
        (job,) = files_of("slurm", two, wide).values()
        assert "#SBATCH --nodes=2" in job and "course_lib.train" in job and "runs/plan" in job
        (run,) = files_of("torchrun", two, wide).values()
        assert "--nnodes 2" in run and "NODE_RANK:?" in run and "MASTER_ADDR:?" in run
        for text in (job, run):
            done = subprocess.run(["bash", "-n"], input=text, text=True, check=False, timeout=30)
            assert done.returncode == 0
        (one,) = files_of("slurm", plan, task).values()
        assert "torchrun --standalone --nproc-per-node=4" in one


def test_accelerates_own_reader_takes_its_file(plans, tmp_path):
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    known = {action.dest for action in launch_command_parser()._actions}
    task, every = able("accelerate", plans)
    for plan in every:
        file = tmp_path / "default.yaml"
        file.write_text(files_of("accelerate", plan, task)["accelerate.yaml"])
        read = load_config_from_file(str(file))
        assert read.num_processes == 4 and set(read.fsdp_config) <= known
        assert set(read.parallelism_config) <= known
        sizes = {key.rpartition("config_")[2]: n for key, n in read.parallelism_config.items()}
        if plan.place.tp > 1:
            assert (sizes["tp_size"], sizes["dp_shard_size"]) == (plan.place.tp, plan.place.dp)
        assert bool(sizes) == (plan.place.tp > 1)


def test_fsdp2s_file_shards_over_the_mesh_it_says(plans):
    task, every = able("fsdp2", plans)
    for plan in every:
        (text,) = files_of("fsdp2", plan, task).values()
        tree = ast.parse(text)
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert ("parallelize_module" in named) == (plan.place.tp > 1)
        assert ("fully_shard" in named) == (plan.setting.stage > 0)
        values = f"{plan.place.dp}, {plan.place.tp}, {plan.setting.rows}, "
        values += f"{plan.setting.accumulate}, 64"
        assert f"DP, TP, ROWS, ACCUMULATE, LENGTH = {values}" in text
        if plan.setting.stage:
            keep = f'mesh=mesh["dp"], reshard_after_forward={plan.setting.stage == 3}'
            assert text.count(keep) == 2


# What a program has no word for: the kind, what the plan has, the sentence.
UNSAID = [
    ("deepspeed", lambda p: p.place.sequence, "sequence parallelism"),
    ("deepspeed", lambda p: p.place.tp > 1 and p.setting.stage == 3, "AutoTP"),
    ("deepspeed", lambda p: p.setting.optimizer == "nvme" and p.setting.stage == 2, "NVMe"),
    ("fsdp2", lambda p: p.place.sequence, "sequence parallelism"),
    ("fsdp2", lambda p: p.setting.stage == 1, "no stage 1"),
    ("accelerate", lambda p: p.setting.optimizer == "nvme", "in files"),
    ("accelerate", lambda p: p.setting.optimizer and not p.setting.parameters, "together"),
    ("fsdp2", lambda p: p.place.tp > 1 and p.setting.stage == 0, "DistributedDataParallel"),
    ("torchrun", lambda p: p.setting.optimizer == "nvme" and p.setting.parameters == "cpu",
     "one place"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "has", "word"), UNSAID, ids=lambda x: x if isinstance(x, str) else ""
)
def test_what_a_program_has_no_word_for_is_said(kind, has, word):
    task, every = some(LLAMA)
    plans = [plan for plan in every if has(plan)]
    assert plans
    reasons = {cannot(kind, plan, task.model, task.length) for plan in plans}
    assert None not in reasons and any(word in reason for reason in reasons)
    plan = next(p for p in plans if word in cannot(kind, p, task.model, task.length))
    with pytest.raises(ValueError, match=word):
        files_of(kind, plan, task)


def test_models_and_numbers_that_fsdp2_does_not_cut():
    task, every = some(GPT2, tp=2, stage=2)
    plan = next(p for p in every if not p.place.sequence and p.setting.offload is None)
    assert "GPT-2's q, k and v" in cannot("fsdp2", plan, task.model, 64)
    task, every = some(LLAMA.changed(kv_heads=1), tp=2, stage=2)
    plan = next(p for p in every if not p.place.sequence and p.setting.offload is None)
    assert "key/value heads over 2 ranks" in cannot("fsdp2", plan, task.model, 64)
    half = replace(plan, setting=replace(plan.setting, precision="float16"))
    assert "loss scale" in cannot("accelerate", half, task.model, 64)


def test_a_dropout_is_left_out_of_the_command_and_said():
    task, every = some(GPT2.changed(dropout=0.1))
    words = words_of(every[0], task.model, 64)
    assert "--dropout" not in words
    (text,) = files_of("torchrun", every[0], task).values()
    assert "omits the dropout of 0.1" in " ".join(text.replace("\n# ", " ").split())


def test_a_vocabulary_is_one_that_the_text_can_have():
    """Of two million bytes some 20,000 entries can be made, of all of the library 60,000."""
    for vocabulary, read in ((16_000, 2_000_000), (32_000, 10**8), (128_256, None)):
        task, every = some(GPT2.changed(vocabulary=vocabulary), tp=1, stage=2)
        why = cannot("torchrun", every[0], task.model, 64)
        assert (why is None) == (read is not None)
        if read is None:
            assert "gives about 60,000 entries, but the model has 128,256" in why
        else:
            assert parse(words_of(every[0], task.model, 64)).corpus_bytes == read


# ---- run
def ran(command, folder, **more):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    path = f"{folder / 'bin'}{os.pathsep}{os.path.dirname(sys.executable)}{os.pathsep}"
    env["PATH"] = path + env["PATH"]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def write(folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_the_scripts_run(tmp_path, tp):
    found = searched(LLAMA, WIDE, tp=tp, stage=2)
    write(tmp_path, files_of("torchrun", found.plans[0], found.task))
    out = ran(["bash", "run.sh", *SHORT.split(), "--out", str(tmp_path / "a")], tmp_path)
    assert "step 2/2" in out
    write(tmp_path, files_of("slurm", found.plans[0], found.task))
    stand_ins(tmp_path / "bin")
    job = tmp_path / "job.sh"
    job.write_text(job.read_text().replace("course_lib.train ", f"course_lib.train {SHORT} "))
    out = ran(["bash", "job.sh"], tmp_path, **variables(1, 4, 23456))
    assert "step 2/2" in out


RUNS = [(LLAMA, 2, 3), (LLAMA, 1, 2), (GPT2, 1, 3), (GPT2, 1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(("config", "tp", "stage"), RUNS)
def test_fsdp2s_file_runs(tmp_path, config, tp, stage):
    pytest.importorskip("transformers")
    found = searched(config, WIDE, tp=tp, stage=stage)
    plan = found.plans[first_that_can("fsdp2", found.plans, found.task.model, 64) - 1]
    write(tmp_path, files_of("fsdp2", plan, found.task))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    out = ran([*command, "--nproc-per-node", "4", "fsdp2.py", "2"], tmp_path)
    losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]
    assert len(losses) == 2 and all(5 < loss < 7.5 for loss in losses)
