"""DeepSpeed's engine around the same model, on the existing process group.

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
    """Import DeepSpeed and set its device, which is read once per process; raise NotThere if
    DeepSpeed is not installed."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        with quiet(), _unheard():
            import deepspeed

            # It would compile a shared-memory all-reduce now, which the ledger cannot see.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    except ImportError as error:
        raise NotThere(
            f"DeepSpeed cannot be imported ({error}); run pip install 'course_lib[deepspeed]'"
        ) from error
    return deepspeed


def started(me: ranks.Me):
    """Import DeepSpeed and initialise it on the existing process group."""
    deepspeed = imported()
    backend = "nccl" if me.backend == "nccl" else "gloo"
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    return deepspeed


@contextmanager
def _unheard() -> Iterator[None]:
    """Hide the output of compilers and linkers. DeepSpeed uses them to test which of its extensions
    can be built, and a failed test is not an error of this run."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def has_fp16() -> bool:
    """Return True if DeepSpeed supports fp16; if not, its files hold fp32 parameters as bf16."""
    imported()
    from deepspeed.accelerator import get_accelerator

    return get_accelerator().is_fp16_supported()


def has_files() -> bool:
    """Return True if DeepSpeed's asynchronous I/O is compiled or can be compiled."""
    imported()
    from deepspeed.ops.op_builder import AsyncIOBuilder

    with quiet(), _unheard():
        return AsyncIOBuilder().is_compatible(verbose=False)


def check_can(setting: WaySetting) -> None:
    """Refuse settings that this device does not support, or whose extension cannot be built."""
    imported()
    if setting.precision == "float16" and not has_fp16():
        raise NotThere("DeepSpeed says that fp16 is not supported on this device, as on most CPUs")
    if setting.offload == "nvme" and not Path(setting.folder).is_dir():
        raise ValueError(f"the folder {setting.folder} is missing, but DeepSpeed would create it")
    if setting.offload == "nvme" and not has_files():
        raise NotThere(
            "DeepSpeed's offload to files compiles its extension async_io, which needs a C++ "
            "compiler and libaio's headers (Debian: apt install g++ libaio-dev)"
        )


def held_by_engine(before: Before, engine) -> dict[str, int]:
    """Count DeepSpeed's bytes. From stage 1 on, its optimizer updates flat fp32 partitions, even of
    fp32 weights. At stage 3 a parameter is a placeholder with its shard in `ds_tensor`, and the
    partition's gradients have a permanent buffer."""
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
    """Train with DeepSpeed; `config` replaces the config that is built from the setting."""
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
