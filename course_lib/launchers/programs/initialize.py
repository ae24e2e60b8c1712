"""A rank starts DeepSpeed's process group from what is in its environment, and says who it is.

Lesson 13.
"""

from __future__ import annotations


def initialize() -> None:
    """Print the rank and the world that DeepSpeed has found."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=None, verbose=False)
    print(f"rank {deepspeed.comm.get_rank()} of {deepspeed.comm.get_world_size()}", flush=True)


if __name__ == "__main__":
    initialize()
