"""Three ways to ask the Trainer for sharding, none of which shards on a CPU or reports an error.

Each is run as a reader would write it, and the held bytes show the result. Lesson 13.
"""

from __future__ import annotations

import tempfile

import torch.distributed as dist

from course_lib import ranks
from course_lib.peers.ways.ds_config import for_trainer
from course_lib.peers.ways.evidence import RunEvidence
from course_lib.peers.ways.setting import NotThere, WaySetting
from course_lib.peers.ways.trainer_run import trained
from course_lib.peers.ways.with_deepspeed import check_can
from course_lib.peers.ways.with_trainer import fsdp_config
from course_lib.peers.ways.workload import Workload, the_package


def for_fsdp(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    """Train with `fsdp=True` and `use_cpu=True`; Accelerate then uses DDP."""
    _check_cpu(me)
    config = fsdp_config(workload, setting)
    return trained("fsdp=True", me, workload, setting, fsdp=True, fsdp_config=config)


def without_use_cpu(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    """Train with a DeepSpeed config but without `use_cpu=True`; each rank's Trainer assumes world
    size 1, so all ranks read the same rows."""
    _check_cpu(me)
    check_can(setting)
    more = {"deepspeed": for_trainer(workload, setting), "use_cpu": False}
    return trained("deepspeed without use_cpu", me, workload, setting, **more)


def loaded_cut(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    """Train with `from_pretrained(…, distributed_config=DistributedConfig(fsdp_size=N))`, which is
    Transformers' own FSDP2. Each shard is a view of the full tensor, which stays in memory."""
    _check_cpu(me)
    if me.world == 1:
        raise NotThere("one rank has nothing to shard, so the Trainer uses DDP")
    the_package()
    from transformers.distributed import DistributedConfig
    from transformers.utils import logging

    def model():
        logging.disable_progress_bar()
        place = [folder]  # from rank 0, the only writer
        dist.broadcast_object_list(place, src=0)
        workload.save(place[0])
        dist.barrier()
        sharding = DistributedConfig(fsdp_size=me.world)
        model = workload.model_class().from_pretrained(place[0], distributed_config=sharding)
        dist.barrier()  # rank 0 then deletes the folder
        return model

    with tempfile.TemporaryDirectory() as folder:
        return trained("loaded cut", me, workload, setting, model)


def _check_cpu(me: ranks.Me) -> None:
    if me.device.type != "cpu":
        raise NotThere(f"this concerns CPU ranks, but these ranks compute on {me.device}")
