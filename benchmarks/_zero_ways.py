"""The methods of `course bench zero`: one training by torch's, our and DeepSpeed's engines.

All use the same weights, data and fused AdamW. A method holds the tensors that have become alive in
the process since it was created. The settings are the best of at least three per method (two ranks
on two cores, 2026-11-22). Buckets have 25 MB unless a different size was faster. DeepSpeed's
default bucket of 5e8 elements would reserve 2 GB.
"""

from __future__ import annotations

import copy
import gc
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from course_lib import ranks, zero
from course_lib.gpt import GPT, Config
from course_lib.memory.storages import alive
from course_lib.meta import memory_key
from course_lib.peers.ways import ours, with_deepspeed
from course_lib.peers.ways.ds_config import offload_sections
from course_lib.peers.ways.launched import quiet, variables
from course_lib.peers.ways.setting import NotThere, WaySetting

BATCHES = 8
WARM = 3  # DDP's second step still broadcasts, and DeepSpeed's first steps differ from later steps
MB = 1 << 20
KEEP = 1 << 60  # bytes; everything is kept from forward to backward
BUCKET = {"reduce_bucket_size": 6_500_000}  # elements, which are 25 MB
BUCKETS = {**BUCKET, "allgather_bucket_size": 6_500_000}
STRICT = {
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,
}
SETTINGS: dict[str, dict] = {
    "ddp": {"bucket_cap_mb": 25, "gradient_as_bucket_view": True},
    "course_lib-0": {"bucket_bytes": 25 * MB},
    "course_lib-1": {"bucket_bytes": 10 * MB},
    "course_lib-2": {"bucket_bytes": 10 * MB},
    "course_lib-3-fast": {"keep": KEEP, "prefetch": 1},
    "course_lib-3-lean": {"prefetch": 1},
    "course_lib-3-cpu": {"prefetch": 1},
    "course_lib-3-nvme": {"prefetch": 1},
    "zero-redundancy-optimizer": {"bucket_cap_mb": 50, "parameters_as_bucket_view": True},
    "fsdp2": {"ahead": 2},
    "fsdp2-reshard": {"ahead": 0},
    "deepspeed-0": BUCKET,
    "deepspeed-1": {**BUCKETS, "overlap_comm": False},
    "deepspeed-2": {**BUCKETS, "overlap_comm": False},
    "deepspeed-3": {**BUCKET, "overlap_comm": True},
    "deepspeed-3-strict": {**BUCKET, **STRICT},
    "deepspeed-3-cpu": BUCKET,
    "deepspeed-3-nvme": BUCKET,
}
# Without fp16 on its accelerator, as on most CPUs, its files hold float32 parameters as bfloat16.
# With weights rounded in this way, losses agree within this fraction.
ROUNDS = {"deepspeed-3-nvme": 5e-3}
MISSING = (
    "deepspeed is not installed here, so it is left out. Install it with the extra `deepspeed`: "
    "pip install -e '.[deepspeed]' -c constraints.txt"
)
NO_FILES = (
    "deepspeed-3-nvme is left out, because its asynchronous I/O is not compiled here and cannot "
    "be; it needs a C++ compiler and libaio-dev"
)


@dataclass
class Task:
    """One rank's part of the work. `ending` undoes a method's creation, after its group."""

    me: ranks.Me
    mesh: DeviceMesh
    dense: GPT
    words: Tensor  # (batches, b, s + 1), different tokens on each rank
    folder: Path
    ending: ExitStack = field(default_factory=ExitStack)
    notes: list[str] = field(default_factory=list)

    def model(self) -> GPT:
        return copy.deepcopy(self.dense)

    def adamw(self, parameters, **options) -> torch.optim.AdamW:
        options = {"lr": 1e-4, "weight_decay": 0.01, "fused": True, **options}
        return torch.optim.AdamW(parameters, **options)

    def training(
        self,
        model: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], object] = Tensor.backward,
        update: Callable[[], object] = lambda: None,
    ) -> Callable[[], float]:
        """Create a step function that trains on the same few batches and returns the loss."""
        made = 0

        def step() -> float:
            nonlocal made
            batch = self.words[made % len(self.words)]  # (b, s + 1)
            made += 1
            logits = model(batch[:, :-1].contiguous())  # (b, s, v)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
            del logits
            backward(loss)
            update()
            return loss.item()

        return step


def task(me: ranks.Me, workload: dict, folder: str) -> Task:
    names = ("vocabulary", "hidden", "layers", "heads")
    config = Config.gpt2(
        **{name: workload[name] for name in names}, length=workload["sequence"], tied=False
    )
    torch.manual_seed(0)  # the same weights on every rank
    dense = GPT(config).to(me.device, getattr(torch, workload["dtype"]))
    drawn = torch.Generator().manual_seed(1 + me.rank)
    shape = (BATCHES, workload["batch"] // me.world, workload["sequence"] + 1)
    words = torch.randint(workload["vocabulary"], shape, generator=drawn).to(me.device)
    made = Task(me, ranks.mesh(me, dp=me.world, tp=1), dense, words, Path(folder))
    gc.collect()
    gc.freeze()  # existing objects stay alive, so later searches are quick
    return made


def bytes_alive() -> int:
    """Count the bytes of all tensors in this process, each storage once."""
    return sum({memory_key(one): one.nbytes() for one in alive()}.values())


def there(name: str) -> bool:
    """Return True if a method can run here."""
    if not name.startswith("deepspeed"):
        return True
    try:
        with_deepspeed.imported()
    except NotThere:
        return False
    return not name.endswith("nvme") or with_deepspeed.has_files()


def note(names: Sequence[str]) -> list[str]:
    """Explain why some of these methods are omitted, if any."""
    if all(map(there, names)):
        return []
    return [NO_FILES if there("deepspeed") else MISSING]


def build(task: Task, name: str) -> Callable[[], float]:
    """Build the step of a method, which trains and returns its loss."""
    engine, _, rest = name.partition("-")
    if engine == "course_lib":
        return our_engine(task, name, *rest.split("-"))
    if engine == "deepspeed":
        return task.training(*verbs(deepspeed_engine(task, name, *rest.split("-"))))
    if engine == "fsdp2":
        return fsdp2(task, reshard=rest == "reshard", **SETTINGS[name])
    return replicated(task, **SETTINGS[name])


def verbs(engine) -> tuple:
    return engine, engine.backward, engine.step


def our_engine(task: Task, name: str, stage: str, place: str = "") -> Callable[[], float]:
    settings = dict(SETTINGS[name])
    if place in ("cpu", "nvme"):
        folder = task.folder / "ours"
        folder.mkdir(exist_ok=True)
        setting = WaySetting(3, "all" if place == "cpu" else place, folder=str(folder))
        settings["offload"] = ours.offload(setting)
    model = task.model()
    engine = zero.engine(
        model,
        task.adamw(model.parameters()),
        stage=int(stage),
        mesh=task.mesh,
        check=False,  # the peers do not check every gradient either
        **settings,
    )
    task.ending.callback(engine.close)
    if place == "nvme":
        task.notes.append(f"{name}: files by threads, past the page cache")
    return task.training(*verbs(engine))


def deepspeed_engine(task: Task, name: str, stage: str, place: str = ""):
    """Create DeepSpeed's engine without clipping, which is on by default."""
    os.environ.update(variables(task.me))
    deepspeed = with_deepspeed.started(task.me)
    model = task.model()
    section = {"stage": int(stage), **SETTINGS[name]}
    if place in ("cpu", "nvme"):
        folder = task.folder / "deepspeed"
        folder.mkdir(exist_ok=True)
        section |= offload_sections(place, str(folder), model)
    config = {
        "train_micro_batch_size_per_gpu": task.words.shape[1],
        "zero_optimization": section,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
    }
    optimizer = task.adamw(model.parameters())
    with quiet():
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    task.ending.callback(engine.destroy)
    # It calls torch's verbs by their old names, and each call would format a warning.
    warnings.filterwarnings("ignore", ".*is deprecated. Please use", FutureWarning)
    if place == "nvme":
        rounded = "" if with_deepspeed.has_fp16() else ", with float32 parameters as bfloat16"
        task.notes.append(
            f"{name}: files by its async_io, past the page cache{rounded}. Its losses must agree "
            f"within {ROUNDS[name]:g}"
        )
    return engine


def update(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Create torch's usual end of a step."""

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def replicated(task: Task, parameters_as_bucket_view: bool | None = None, **settings):
    """Train with DDP, or with ZeroRedundancyOptimizer, which has one more option. A step leaves the
    gradients in DDP's buckets; we keep a view of each, since no other object shows that the buckets
    exist."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ids = [task.me.device.index] if task.me.device.type == "cuda" else None
    group = task.mesh.get_group("dp")
    settings = {"gradient_as_bucket_view": True, **settings}
    model = DistributedDataParallel(task.model(), ids, process_group=group, **settings)
    if parameters_as_bucket_view is None:
        optimizer = task.adamw(model.parameters())
    else:
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            task.adamw,
            process_group=group,
            parameters_as_bucket_view=parameters_as_bucket_view,
        )
    buckets: list = []
    task.ending.callback(buckets.clear)
    parameters, end = list(model.parameters()), update(optimizer)

    def looked_at() -> None:
        buckets[:] = [p.grad for p in parameters]
        end()

    return task.training(model, update=looked_at)


def fsdp2(task: Task, *, reshard: bool, ahead: int) -> Callable[[], float]:
    """Shard each block, each table and the rest as units; `ahead` units are prefetched."""
    from torch.distributed.fsdp import fully_shard

    model = task.model()
    cut: list[nn.Module] = [model.tokens, *model.blocks, model.head]
    for unit in (*cut, model):
        fully_shard(unit, mesh=task.mesh["dp"], reshard_after_forward=reshard)
    for i, unit in enumerate(cut if ahead else ()):
        unit.set_modules_to_forward_prefetch(cut[i + 1 : i + 1 + ahead])
        unit.set_modules_to_backward_prefetch(cut[max(0, i - ahead) : i][::-1])
    return task.training(model, update=update(task.adamw(model.parameters())))
