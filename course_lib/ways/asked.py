"""Three ways of asking the Trainer for sharding that do not give it on a CPU, without an error.

Each is run as a reader would write it, and its held bytes say what it was. Lesson 13.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch.distributed as dist

from course_lib import ranks
from course_lib.ways.ds_config import for_trainer
from course_lib.ways.evidence import Before, Run
from course_lib.ways.launched import launched, quiet
from course_lib.ways.setting import NotThere, Setting
from course_lib.ways.trainer_run import arguments, recorder_class, run, trainer
from course_lib.ways.with_deepspeed import check_can
from course_lib.ways.with_trainer import fsdp_config
from course_lib.ways.workload import Workload, the_package


def for_fsdp(me: ranks.Me, workload: Workload, setting: Setting) -> Run:
    """`fsdp=True` with `use_cpu=True`: Accelerate trains with DDP."""
    more = {"fsdp": True, "fsdp_config": fsdp_config(workload, setting)}
    return _trained("fsdp=True", me, workload, setting, more)


def without_use_cpu(me: ranks.Me, workload: Workload, setting: Setting) -> Run:
    """A DeepSpeed config without `use_cpu=True`: each rank's Trainer believes that it is alone, and
    all ranks read the same rows."""
    check_can(setting)
    more = {"deepspeed": for_trainer(workload, setting), "use_cpu": False}
    return _trained("deepspeed without use_cpu", me, workload, setting, more)


def loaded_cut(me: ranks.Me, workload: Workload, setting: Setting) -> Run:
    """`from_pretrained(…, distributed_config=DistributedConfig(fsdp_size=N))`, Transformers' own
    FSDP2: each rank's shard is a view of the full tensor, which stays in memory."""
    the_package()
    if me.world == 1:
        raise NotThere("one rank has nothing to shard, and the Trainer takes DDP")
    if not can_load_cut():
        raise NotThere(
            "this Transformers cannot shard a model while it loads: DistributedConfig(fsdp_size=N) "
            "came with release 5"
        )
    return _trained("loaded cut", me, workload, setting, {}, load=True)


def can_load_cut() -> bool:
    try:
        from transformers.distributed import DistributedConfig
    except ImportError:
        return False
    return "fsdp_size" in DistributedConfig.__dataclass_fields__


def _trained(
    way: str, me: ranks.Me, workload: Workload, setting: Setting, more: dict, load: bool = False
) -> Run:
    if me.device.type != "cpu":
        raise NotThere(f"{way}: a finding about CPU ranks; these ranks compute on {me.device}")
    with launched(me), quiet(), tempfile.TemporaryDirectory() as folder:
        before = Before()
        given = arguments(me, workload, setting, folder, **more)

        def model():
            return _loaded(me, workload, Path(folder)) if load else workload.model()

        made = trainer(workload, setting, me.world, model, given)
        try:
            result = run(way, made, recorder_class()(before))
        finally:
            if made.is_deepspeed_enabled and made.model_wrapped is not made.model:
                made.model_wrapped.destroy()
        result.notes.append(f"the Trainer counts {made.args.world_size} of {me.world} ranks")
        return result


def _loaded(me: ranks.Me, workload: Workload, folder: Path):
    from transformers.distributed import DistributedConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = [str(folder / "dense")]  # of rank 0, which alone writes
    dist.broadcast_object_list(place, src=0)
    workload.save(place[0])
    dist.barrier()
    model = workload.model_class().from_pretrained(
        place[0], distributed_config=DistributedConfig(fsdp_size=me.world)
    )
    dist.barrier()  # the folder goes with rank 0's
    return model
