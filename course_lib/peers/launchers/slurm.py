"""SLURM scripts for a program: one launcher on each node, which starts that node's ranks.

srun starts tasks and sets SLURM_PROCID and SLURM_NODEID. It does not set RANK and MASTER_ADDR,
which torch reads, so a launcher inside each srun task sets them. Lesson 13.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

KINDS = ("torchrun", "one node", "deepspeed")
TIME = re.compile(r"(\d+-)?\d{1,2}(:\d{2}){0,2}")
FIRST_PORT, PORTS = 20000, 20000  # as `ranks.start` derives it from the job ID

HEAD = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --time={time}
#SBATCH --output=%x-%j.log
# One task per node; its launcher starts the {gpus} rank(s) of the node.
set -euo pipefail
"""

MEET = """
# All nodes meet at the first node, at a port derived from the job ID.
NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${{NODES%%$'\\n'*}}
MASTER_PORT=$(({first} + SLURM_JOB_ID % {ports}))
export NODES MASTER_ADDR MASTER_PORT
"""

ONE_NODE = """
srun --kill-on-bad-exit=1 torchrun --standalone --nproc-per-node={gpus} \\
  {program}
"""

TORCHRUN = """
# In single quotes, because SLURM_NODEID differs on each node.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
  exec torchrun --nnodes="$SLURM_JOB_NUM_NODES" --node-rank="$SLURM_NODEID" \\
    --nproc-per-node={gpus} --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
' node {program}
"""

DEEPSPEED = """
# Each node writes the same hostfile for itself; with --no_ssh, srun replaces ssh.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
  set -u
  hostfile=$(mktemp)
  trap "rm -f \\"$hostfile\\"" EXIT
  for host in $NODES; do echo "$host slots={gpus}"; done > "$hostfile"
  deepspeed --hostfile="$hostfile" --no_ssh --node_rank="$SLURM_NODEID" \\
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "$@"
' node {program}
"""


def script(
    nodes: int,
    gpus: int,
    program: str,
    arguments: Sequence[str] = (),
    *,
    kind: str = "torchrun",
    name: str = "train",
    time: str = "01:00:00",
) -> str:
    """Return a script for `sbatch`: `program` on `nodes` nodes with `gpus` ranks each."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(map(repr, KINDS))}")
    for label, count in (("nodes", nodes), ("gpus", gpus)):
        if count < 1:
            raise ValueError(f"{label}={count}, but a job needs 1 or more")
    if kind == "one node" and nodes != 1:
        raise ValueError(f"kind='one node' needs nodes=1, not {nodes}; use kind='torchrun'")
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"name={name!r} must consist of letters, digits and . _ -")
    if not TIME.fullmatch(time):
        raise ValueError(f"time={time!r} is not a SLURM time; write hours:minutes:seconds")
    if not program or "\n" in shlex.join([program, *arguments]):
        raise ValueError("the program and its arguments must be words in one line")
    words = shlex.join([program, *arguments])
    body = {"torchrun": MEET + TORCHRUN, "one node": ONE_NODE, "deepspeed": MEET + DEEPSPEED}[kind]
    values = {"name": name, "nodes": nodes, "gpus": gpus, "time": time, "program": words}
    return (HEAD + body).format(**values, first=FIRST_PORT, ports=PORTS)
