"""srun's part on one host, so that a script can be tried where there is no cluster.

Every node is a process group on this host, which gets the variables that srun would give its task;
no time, memory or GPU is limited. Standard library alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

KNOWN = ("--kill-on-bad-exit=1",)
GRACE = 3.0  # seconds for the other tasks, after one has failed


def variables(nodes: int, gpus: int, port: int) -> dict[str, str]:
    """What a job of one task a node finds, on hosts of which only the first has to be reached.
    Its number is the one from which `port` follows."""
    if not 20000 <= port < 40000:
        raise ValueError(f"port {port} follows from no job's number: it is one of 20000 to 39999")
    names = ["localhost", *(f"node-{i}" for i in range(1, nodes))]
    return {
        "SLURM_JOB_ID": str(port - 20000), "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes), "SLURM_NTASKS": str(nodes), "SLURM_NPROCS": str(nodes),
        "SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": f"1(x{nodes})",
        "SLURM_GPUS_PER_NODE": str(gpus), "SLURM_JOB_NODELIST": ",".join(names),
    }  # fmt: skip


def stand_ins(folder: Path) -> Path:
    """Write srun, scontrol, torchrun and deepspeed into a folder for the front of PATH."""
    folder.mkdir()
    lines = {
        "srun": f'"{Path(__file__).resolve()}"',
        "torchrun": "-m torch.distributed.run",
        "deepspeed": "-m deepspeed.launcher.runner",
    }
    texts = {name: f'exec "{sys.executable}" {words} "$@"' for name, words in lines.items()}
    texts["scontrol"] = (
        '[ "$1 $2" = "show hostnames" ] || { echo "scontrol: only show hostnames" >&2; exit 2; }\n'
        'echo "$3" | tr , "\\n"'
    )
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o700)
    return folder


def send(processes: list[subprocess.Popen], number: int) -> None:
    """A signal to every task with all that it has started in its group."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


def main(words: list[str]) -> int:
    """One task for each node, in a process group of its own. The highest exit code of the tasks;
    128 and the signal's number where one was killed."""
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word not in KNOWN:
            print(f"srun on this host knows {' '.join(KNOWN)} and not {word}", file=sys.stderr)
            return 2
    started = []
    for node in range(int(os.environ["SLURM_JOB_NUM_NODES"])):
        own = {"SLURM_PROCID": node, "SLURM_NODEID": node, "SLURM_LOCALID": 0, "SLURM_STEP_ID": 0}
        env = {**os.environ, **{name: str(value) for name, value in own.items()}}
        started.append(subprocess.Popen(words, env=env, start_new_session=True))
    signal.signal(signal.SIGTERM, lambda *_: send(started, signal.SIGTERM))
    limit = float("inf")
    while any(process.poll() is None for process in started):
        if limit == float("inf") and any(process.poll() for process in started):
            limit = time.monotonic() + GRACE
            send(started, signal.SIGTERM)
        if time.monotonic() > limit:
            send(started, signal.SIGKILL)
        time.sleep(0.03)
    codes = [process.returncode for process in started]
    return max(code if code >= 0 else 128 - code for code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
