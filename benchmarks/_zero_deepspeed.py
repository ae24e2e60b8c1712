"""DeepSpeed as a peer: its four stages, stage 3 set strictly, and both its offloads.

Settings to be tried, the one in use first; `--set tune=1` tries them all. Where a time stands
beside them (in DDP's; two ranks on two cores, 2026-11-22) they were compared, elsewhere not. The
optimizer is torch's fused AdamW as for all; clipping, which it does by default, is off. Its
buckets are as large as the others': its default of 5e8 numbers sets 2 GB aside.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence

from _zero_task import Task

from course_lib.ways import with_deepspeed
from course_lib.ways.launched import quiet, variables
from course_lib.ways.setting import NotThere

MISSING = (
    "deepspeed is not installed here, so it is left out; it comes with the extra `deepspeed`: "
    "pip install -e '.[deepspeed]' -c constraints.txt"
)
NO_FILES = (
    "deepspeed-3-nvme is left out: its asynchronous I/O is not compiled here and cannot be; it "
    "needs a C++ compiler and libaio-dev"
)
BUCKET = 6_500_000  # numbers: 25 MB, as for all others
ALIKE = {"reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET}
STRICT = {
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,
}
# For each method the settings tried, the one that is used first.
SETTINGS: dict[str, list[dict]] = {
    "deepspeed-0": [
        {"reduce_bucket_size": BUCKET},
        {"reduce_bucket_size": 4 * BUCKET},
        {"reduce_bucket_size": BUCKET, "prescale_gradients": True},
    ],
    "deepspeed-1": [
        {**ALIKE, "overlap_comm": False},
        {**ALIKE, "overlap_comm": True},
        {"reduce_bucket_size": 4 * BUCKET, "allgather_bucket_size": 4 * BUCKET},
        {**ALIKE, "reduce_scatter": False},
    ],
    "deepspeed-2": [
        {**ALIKE, "overlap_comm": False},  # 1.20
        {**ALIKE, "overlap_comm": True},  # 1.32
        {"reduce_bucket_size": 4 * BUCKET, "allgather_bucket_size": 4 * BUCKET},  # 1.59
        {**ALIKE, "reduce_scatter": False},  # 1.25
    ],
    "deepspeed-3": [
        {"reduce_bucket_size": BUCKET, "overlap_comm": True},  # 1.49
        {"reduce_bucket_size": BUCKET},  # 1.64
        {"reduce_bucket_size": 4 * BUCKET},  # 1.76
    ],
    "deepspeed-3-strict": [
        {"reduce_bucket_size": BUCKET, **STRICT},
        {"reduce_bucket_size": BUCKET, "overlap_comm": True, **STRICT},
        {"reduce_bucket_size": 4 * BUCKET, **STRICT},
    ],
    "deepspeed-3-cpu": [
        {"reduce_bucket_size": BUCKET},
        {"reduce_bucket_size": BUCKET, "overlap_comm": True},
        {"reduce_bucket_size": 4 * BUCKET},
    ],
    "deepspeed-3-nvme": [
        {"reduce_bucket_size": BUCKET},
        {"reduce_bucket_size": BUCKET, "overlap_comm": True},
        {"reduce_bucket_size": 4 * BUCKET},
    ],
}


# Where its accelerator has no fp16, as on most CPUs, its files hold float32 parameters as bfloat16:
# with weights so rounded, losses agree to this part.
ROUNDS = {"deepspeed-3-nvme": 5e-3}


def there(name: str) -> bool:
    """Whether a method can run here."""
    return imported() is not None and (not name.endswith("nvme") or with_deepspeed.has_files())


def imported():
    """The package, or None where there is none."""
    try:
        return with_deepspeed.imported()
    except NotThere:
        return None


def note(names: Sequence[str]) -> list[str]:
    """Why some of these methods are left out, if they are."""
    ours = [name for name in names if name in SETTINGS]
    if all(there(name) for name in ours):
        return []
    return [MISSING if imported() is None else NO_FILES]


def build(task: Task, name: str, settings: dict) -> Callable[[], float]:
    deepspeed = started(task)
    model = task.model()
    _, stage, *more = name.split("-")
    zero = {"stage": int(stage), **settings}
    place = more[0] if more and more[0] in ("cpu", "nvme") else None
    if place is not None:
        where = {"device": place}
        if place == "nvme":
            folder = task.folder / "deepspeed"
            folder.mkdir(exist_ok=True)
            where["nvme_path"] = str(folder)
        largest = max(p.numel() for p in model.parameters())
        zero["offload_optimizer"] = dict(where)
        zero["offload_param"] = {**where, "buffer_size": largest, "buffer_count": 5}
    config = {
        "train_micro_batch_size_per_gpu": task.words.shape[1],
        "zero_optimization": zero,
        **{name: zero.pop(name) for name in ("prescale_gradients",) if name in zero},
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
    }
    optimizer = task.adamw(model.parameters())
    with quiet():
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    task.ending.callback(engine.destroy)
    # It calls torch's verbs by their old names, and each time a warning would be put into words.
    warnings.filterwarnings("ignore", ".*is deprecated. Please use", FutureWarning)
    if place == "nvme":
        rounded = "" if with_deepspeed.has_fp16() else "; float32 parameters are bfloat16 there"
        task.notes.append(
            f"{name}: files by its async_io, past the page cache{rounded}; its losses are held to "
            f"{ROUNDS[name]:g}"
        )
    return task.training(engine, engine.backward, engine.step)


def started(task: Task):
    """DeepSpeed, on the group that is there already."""
    me = task.me
    os.environ.update(variables(me))
    deepspeed = imported()
    backend = "nccl" if me.backend == "nccl" else "gloo"
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    return deepspeed
