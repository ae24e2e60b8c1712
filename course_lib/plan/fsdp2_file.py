"""A plan as a Python file that shards a Transformers model only with torch (DTensor, FSDP2).

The lines that shard the model come from the ladder; mesh, model and loop are added here. Lesson 15.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from course_lib.estimate.model import Model
from course_lib.peers.deepspeed_config import fsdp2
from course_lib.plan.search import Plan

HEAD = '''\
{comments}
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
{imports}
{tp_import}from transformers import AutoConfig, AutoModelForCausalLM

DP, TP, ROWS, ACCUMULATE, LENGTH = {dp}, {tp}, {rows}, {accumulate}, {length}
CONFIG = json.loads("""
{config}
""")


def build():
    """Make the full model on each rank's host, in float32."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**CONFIG)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def shard(model, mesh):
{body}
    return model, optimizer


def main(steps):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    kind = "cuda" if cuda else "cpu"
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh(kind, (DP, TP), mesh_dim_names=("dp", "tp"))
    model = build(){to_device}
    words = model.config.vocab_size
    model, optimizer = shard(model, mesh)
    model.train()
    rows = torch.Generator().manual_seed(mesh.get_local_rank("dp"))  # the same on all ranks of tp
    for step in range(steps):
        for micro in range(ACCUMULATE):
            ids = torch.randint(words, (ROWS, LENGTH), generator=rows).to(kind)
{sync}
            with {context}:
                loss = model(input_ids=ids, labels=ids).loss / ACCUMULATE
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {{step + 1}}: loss {{loss.item() * ACCUMULATE:.4f}}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
'''
OF_A_FILE = ("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")
PLAIN = "torch.enable_grad()"
OF_TP = """\
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
"""
CUT = """\
cut = {}  # by heads, and by the MLP's inner width
for layer in ("q_proj", "k_proj", "v_proj"):
    cut[f"model.layers.*.self_attn.{layer}"] = ColwiseParallel()
for layer in ("gate_proj", "up_proj"):
    cut[f"model.layers.*.mlp.{layer}"] = ColwiseParallel()
for layer in ("self_attn.o_proj", "mlp.down_proj"):
    cut[f"model.layers.*.{layer}"] = RowwiseParallel()
parallelize_module(model, mesh["tp"], cut)"""


def python(plan: Plan, model: Model, length: int, comments: Sequence[str]) -> str:
    """Return a program for `torchrun … fsdp2.py [STEPS]`, with random tokens as its data."""
    setting, place = plan.setting, plan.place
    imports, body = fsdp2.lines(setting, model.kind, mesh='mesh["dp"]')
    lines = (CUT.splitlines() if place.tp > 1 else []) + body
    replicated = setting.stage == 0
    last = "micro + 1 == ACCUMULATE"
    sync = f"model.set_requires_gradient_sync({last})" if not replicated else ""
    sync = sync or f"model.require_backward_grad_sync = {last}"
    cast = replicated and setting.master
    keys = {name: value for name, value in model.keys.items() if name not in OF_A_FILE}
    keys |= {"use_cache": False}
    sizes = {"dp": place.dp, "tp": place.tp, "rows": setting.rows, "length": length}
    return HEAD.format(
        comments="".join(f"# {line}\n" for line in comments).rstrip("\n"),
        imports="\n".join(line for line in imports if line != "import torch"),
        tp_import=OF_TP if place.tp > 1 else "",
        accumulate=setting.accumulate,
        config=json.dumps(keys, indent=2).replace("\\", "\\\\"),
        body="\n".join(f"    {line}".rstrip() for line in lines),
        to_device=".to(kind)" if replicated else "",
        sync=f"            {sync}",
        context=f"torch.autocast(kind, torch.{setting.precision})" if cast else PLAIN,
        **sizes,
    )
