"""A plan as a shell script: torchrun on each node, or a SLURM job, with course_lib.train.

Lesson 15.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from course_lib.launchers import slurm

ONE_NODE = """\
torchrun --standalone --nproc-per-node {gpus} \\
  -m course_lib.train {words} "$@"
"""
MANY = """\
# On every node: NODE_RANK is 0 on the first, whose address is MASTER_ADDR.
torchrun --nnodes {nodes} --nproc-per-node {gpus} \\
  --node-rank "${{NODE_RANK:?which of the {nodes} nodes is this, from 0 on}}" \\
  --master-addr "${{MASTER_ADDR:?the address of the first node}}" \\
  --master-port "${{MASTER_PORT:-29500}}" \\
  -m course_lib.train {words} "$@"
"""


def torchrun(nodes: int, gpus: int, words: Sequence[str], comments: Sequence[str]) -> str:
    """`bash run.sh`; more options may follow, such as --steps or --out."""
    body = (ONE_NODE if nodes == 1 else MANY).format(
        nodes=nodes, gpus=gpus, words=shlex.join(words)
    )
    return "#!/bin/bash\n" + _comments(comments) + "set -euo pipefail\n" + body


def batch(nodes: int, gpus: int, words: Sequence[str], comments: Sequence[str]) -> str:
    """`sbatch job.sh`."""
    kind = "one node" if nodes == 1 else "torchrun"
    text = slurm.script(nodes, gpus, "-m", ["course_lib.train", *words], kind=kind, name="plan")
    first, _, rest = text.partition("# One task a node")
    return first + _comments(comments) + "# One task a node" + rest


def _comments(lines: Sequence[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)
