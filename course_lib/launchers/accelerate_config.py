"""The file that `accelerate launch --config_file` reads, for some ranks on this host.

What stands there decides which launcher accelerate is: torch's, or, with `use_cpu`, none at all.
Lesson 13.
"""

from __future__ import annotations

KINDS = ("MULTI_GPU", "MULTI_CPU", "DEEPSPEED")


def accelerate_config(
    world: int, port: int = 0, *, kind: str = "MULTI_GPU", deepspeed: str | None = None
) -> str:
    """`world` ranks on one host that meet at `port`, 0 for one that accelerate chooses.

    MULTI_GPU is the kind that starts ranks by torch's launcher, on a host without GPUs as well.
    MULTI_CPU starts them with mpirun where its hostfile is given, and else one process alone.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    if (deepspeed is None) == (kind == "DEEPSPEED"):
        raise ValueError("kind='DEEPSPEED' and deepspeed=, the path of its config, go together")
    lines = [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        "num_machines: 1",
        "machine_rank: 0",
        f"num_processes: {world}",
        f"main_process_port: {port}",
        "main_process_ip: 127.0.0.1" if kind == "MULTI_CPU" else "same_network: true",
        "mixed_precision: 'no'",
        f"use_cpu: {str(kind == 'MULTI_CPU').lower()}",
    ]
    if deepspeed is not None:
        lines += ["deepspeed_config:", f"  deepspeed_config_file: '{deepspeed}'"]
        lines += ["  zero3_init_flag: false"]
    return "\n".join(lines) + "\n"
