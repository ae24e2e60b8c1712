"""Rows of the DeepSpeed page: from installing it to a notebook, by way of every launcher.

Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import deepspeed as probes
from course_lib.then_and_now.row import CHANGED, OUTSIDE, RUN, Row

ROWS = (
    Row(
        "install and prebuild extensions",
        "pip builds nothing ahead: an extension is compiled at first use. DS_BUILD_OPS=1 and the "
        "like compile at install, TORCH_CUDA_ARCH_LIST says for which GPUs, and a wheel built so "
        "serves many nodes.",
        OUTSIDE,
        "The variables are the same. Building ahead needs a CUDA toolkit, which this course does "
        "not ask for; its runs choose torch_adam, which needs no compiler.",
        ("DeepSpeed: Installation Details (Pre-install DeepSpeed Ops)",),
    ),
    Row(
        "several GPUs with torchrun",
        "torchrun --nproc_per_node=2 script.py, with --deepspeed for the script.",
        RUN,
        "torchrun starts two ranks on CPUs as on GPUs, here without an open port.",
        (
            "tests/test_ranks_launchers.py::test_torchrun_really",
            "tests/train/test_program.py::test_under_torchrun_it_is_the_same_run",
        ),
    ),
    Row(
        "several GPUs with torchrun",
        "python -m torch.distributed.launch does the same.",
        CHANGED,
        "torch 2.13 deprecates it in favour of torchrun, which hands LOCAL_RANK over as a "
        "variable and no longer as --local-rank.",
        (),
        probes.torch_launcher,
        "The module torch.distributed.launch is deprecated",
    ),
    Row(
        "several GPUs with the deepspeed launcher",
        "deepspeed --num_gpus=2 script.py; without the number, all GPUs.",
        RUN,
        "The same; where it is not said how many, it asks DeepSpeed's accelerator, on a CPU too.",
        (
            "tests/then_and_now/test_devices.py::test_include_and_exclude_pick_devices",
            "tests/launchers/test_failures.py::test_a_rank_is_killed_under_every_launcher",
            "notebooks/13_deepspeed_and_the_trainer.ipynb § Launchers: who starts the ranks",
        ),
    ),
    Row(
        "one GPU, and why it can pay",
        "With one GPU there is nothing to shard, but offload to the CPU lets a larger model or "
        "batch fit, and fragmentation falls.",
        RUN,
        "A model four times a rank's budget trains with offload.",
        (
            "tests/zero_offload/test_larger.py::test_a_model_four_times_a_ranks_budget",
            "notebooks/12_offload_and_estimators.ipynb § Larger than the device",
        ),
    ),
    Row(
        "several nodes: torchrun, or deepspeed with a hostfile",
        "torchrun on every node with the first node's address; or deepspeed once, with a hostfile "
        "of `host slots=8` lines, over ssh without a password.",
        RUN,
        "The same. Which rank is where follows from the launcher's variables, here asked of two "
        "nodes' worth of them.",
        (
            "tests/test_ranks_launchers.py::test_who_the_environment_says",
            "tests/launchers/test_hostfile.py::test_deepspeed_reads_the_same_hosts_and_refuses_the_same_files",
        ),
    ),
    Row(
        "several nodes without a shared file system",
        "checkpoint.use_node_local_storage: true, so that every node writes what it needs.",
        RUN,
        "Then the first rank of each node writes the model's states, beside each rank's own part "
        "of the optimizer; without it, only rank 0 does.",
        (
            "tests/then_and_now/test_weights.py::test_without_a_shared_disk_every_node_writes_the_model",
        ),
    ),
    Row(
        "SLURM",
        "A batch script starts one task per node with srun, each a launcher of its GPUs.",
        RUN,
        "The same; a task per rank works as well, and needs no launcher.",
        (
            "tests/train/test_program.py::test_under_slurm_each_task_finds_its_place",
            "tests/test_ranks_launchers.py::test_slurm_variables_really_start_a_group",
        ),
    ),
    Row(
        "a notebook",
        "One process is a world of one: set MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK and "
        "WORLD_SIZE. For more, a shell cell writes the script and starts a launcher.",
        RUN,
        "The same for one process. This course's cells run on several ranks by themselves, each "
        "in a kernel of its own, and need no shell cell.",
        (
            "tests/then_and_now/test_engine.py::test_one_process_is_a_world_of_one",
            "course_lib.classroom.magic:RanksMagics",
        ),
    ),
)
