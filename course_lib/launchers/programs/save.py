"""A rank of DeepSpeed's engine saves a checkpoint in its own folder, and loads what is there.

Arguments: save (then the latest is loaded, then the same by its name) or tag (only the last);
then true or false, which is checkpoint.use_node_local_storage. Lesson 13.
"""

from __future__ import annotations

import sys
import warnings

TAG = "step"
FOLDER = "checkpoint"  # where this rank runs, as its node's disk


def engine(local: bool):
    """A small layer under ZeRO-2."""
    warnings.simplefilter("ignore")
    import deepspeed
    import torch

    # Built at the start of every group on a CPU, where it is not said to be impossible.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=None, auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"use_node_local_storage": local},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def load(local: bool, tag: str | None) -> None:
    """Load into an engine that is new, and say what it came to."""
    path, _ = engine(local).load_checkpoint(FOLDER, tag=tag)
    print("nothing was loaded" if path is None else "loaded", flush=True)


def main(action: str, local: str) -> None:
    """Do it. A rank that finds no file ends here, and its launcher ends the other."""
    storage = local == "true"
    if action == "save":
        engine(storage).save_checkpoint(FOLDER, tag=TAG)
        print("saved", flush=True)
        load(storage, None)
    load(storage, TAG)


if __name__ == "__main__":
    main(*sys.argv[1:])
