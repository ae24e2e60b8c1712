"""A model that a rank could never hold: trained in files, under the kernel's own limit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import devices

PROGRAM = """
import resource, sys, torch
from torch import nn
from course_lib import ranks, zero

SIZE, LAYERS, ROOM = 800, 24, 175 << 20  # 61 MB of parameters; the two runs take 118 and 235
me = ranks.start(0, 1, rendezvous=sys.argv[3])
mesh = ranks.mesh(me, dp=1, tp=1)
# What torch loads and sets aside at its first use is not the engine's.
warm = nn.Parameter(torch.ones(256, 256))
warm.matmul(torch.ones(256, 256)).sum().backward()
torch.optim.AdamW([warm], foreach=False).step()
del warm
with torch.device("meta"):
    layers = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS))
model = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
with open("/proc/self/status") as file:
    now = next(1024 * int(line.split()[1]) for line in file if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (now + ROOM, resource.RLIM_INFINITY))
offload = {"optimizer": "nvme", "parameters": "nvme", "folder": sys.argv[1]}
try:
    engine = zero.engine(
        model, optimizer, stage=3, mesh=mesh, units=list(model),
        fill=lambda name, x: nn.init.eye_(x), prefetch=1, persist=0,
        offload=offload if sys.argv[2] == "files" else None,
    )
    for _ in range(3):
        loss = engine(torch.ones(1, SIZE)).square().sum()
        engine.backward(loss)
        engine.step()
        print(loss.item())
    engine.close()
except (MemoryError, RuntimeError) as error:
    print("too much:", error)
"""


def under_the_limit(folder, where: str) -> str:
    env = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    env["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)  # else glibc keeps what was freed, and counts it
    meet = folder.with_name(f"{folder.name}-{where}-meet")
    command = [sys.executable, "-c", PROGRAM, str(folder), where, str(meet)]
    env |= devices.HIDDEN
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cpu("the limit is on the host's memory")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA is Linux's")
def test_states_are_not_in_memory_by_the_kernels_own_limit(tmp_path):
    said_in_memory = under_the_limit(tmp_path, "memory")
    assert "too much:" in said_in_memory, said_in_memory
    said_in_files = under_the_limit(tmp_path, "files")
    lines = said_in_files.splitlines()
    assert len(lines) == 3 and float(lines[2]) < float(lines[0]), said_in_files
