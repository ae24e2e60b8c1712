"""DeepSpeed's engine around the same model, on the process group that is there already.

Lesson 13.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from course_lib import ranks
from course_lib.memory.storages import plain_tensors
from course_lib.peers.ways.ds_config import ds_config
from course_lib.peers.ways.evidence import Before, RunEvidence, held_by
from course_lib.peers.ways.launched import launched, quiet
from course_lib.peers.ways.loop import of_engine
from course_lib.peers.ways.loop import train as train_by
from course_lib.peers.ways.setting import NotThere, WaySetting
from course_lib.peers.ways.workload import Workload


def imported():
    """The package, told which device there is (for as long as this process lives, since it reads
    that once); NotThere where it is not installed."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        with quiet(), _unheard():
            import deepspeed

            # An all-reduce through shared memory that it would compile now, and no ledger sees.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    except ImportError as error:
        raise NotThere(
            f"DeepSpeed cannot be imported ({error}): pip install 'course_lib[deepspeed]'"
        ) from error
    return deepspeed


def started(me: ranks.Me):
    """The package, on the process group that is there already."""
    deepspeed = imported()
    backend = "nccl" if me.backend == "nccl" else "gloo"
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    return deepspeed


@contextmanager
def _unheard() -> Iterator[None]:
    """Nothing of what a compiler or linker writes meanwhile: DeepSpeed tries by their means which
    of its extensions could be built, and one that could not is no fault of this run."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def has_fp16() -> bool:
    """By DeepSpeed's own account. Where not, its files hold fp32 parameters as bfloat16."""
    imported()
    from deepspeed.accelerator import get_accelerator

    return get_accelerator().is_fp16_supported()


def has_files() -> bool:
    """Whether its asynchronous I/O is compiled or can be."""
    imported()
    from deepspeed.ops.op_builder import AsyncIOBuilder

    with quiet(), _unheard():
        return AsyncIOBuilder().is_compatible(verbose=False)


def check_can(setting: WaySetting) -> None:
    """Refuse what this device has not, or what needs an extension that cannot be built here."""
    imported()
    if setting.precision == "float16" and not has_fp16():
        raise NotThere("DeepSpeed says that fp16 is not supported on this device, as on most CPUs")
    if setting.offload == "nvme" and not Path(setting.folder).is_dir():
        raise ValueError(f"the folder {setting.folder} is missing, and DeepSpeed would make it")
    if setting.offload == "nvme" and not has_files():
        raise NotThere(
            "DeepSpeed's offload to files compiles its extension async_io, which needs a C++ "
            "compiler and libaio's headers (Debian: apt install g++ libaio-dev)"
        )


def held_by_engine(before: Before, engine) -> dict[str, int]:
    """What DeepSpeed holds: from stage 1 on its optimizer updates flat partitions in fp32, of fp32
    weights too; at stage 3 a parameter is a placeholder on which its shard hangs as `ds_tensor`,
    and the partition's gradients have a buffer for good."""
    optimizer, base = engine.optimizer, engine.optimizer
    while not isinstance(base, torch.optim.Optimizer):
        base = base.optimizer
    kinds = {
        "parameters": [p.ds_tensor for p in engine.module.parameters() if hasattr(p, "ds_tensor")],
        "master weights": [
            *getattr(optimizer, "single_partition_of_fp32_groups", ()),
            *getattr(optimizer, "fp32_partitioned_groups_flat", ()),
        ],
        "gradients": plain_tensors(getattr(optimizer, "grad_partitions_flat_buffer", ())),
    }
    return held_by(before, engine.module, base, kinds)


def train(
    me: ranks.Me, workload: Workload, setting: WaySetting, *, config: dict | None = None
) -> RunEvidence:
    """`config`: what DeepSpeed is given instead of the setting's own translation."""
    check_can(setting)
    with launched(me), quiet():
        deepspeed = started(me)
        before = Before()
        model = workload.model().to(me.device)
        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=model.parameters(),
            config=ds_config(workload, setting) if config is None else config,
        )

        def norm() -> float | None:
            value = engine.get_global_grad_norm()
            return None if value is None else float(value)

        verbs = of_engine(engine, norm, lambda before: held_by_engine(before, engine))
        try:
            return train_by("deepspeed", me, workload, setting, before, verbs)
        finally:
            engine.destroy()
