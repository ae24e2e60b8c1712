"""The reference: every rank trains the full model on the batches of all ranks, and sends nothing.

In bfloat16 the model has 16 bits, and AdamW works on a 32-bit copy. Lesson 13.
"""

from __future__ import annotations

import torch

from course_lib import ranks
from course_lib.peers.ways.evidence import Before, Evidence, RunEvidence, held_by, traffic
from course_lib.peers.ways.loop import adamw, booked, on
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.workload import Workload


def train(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    before = Before()
    model = workload.model().to(me.device, getattr(torch, setting.precision))
    trained = list(model.parameters())
    master = setting.precision != "float32"
    updated = [p.detach().clone().float() for p in trained] if master else trained
    optimizer = adamw(updated, workload)
    losses, norms = [], []
    parts = me.world * setting.accumulate
    for step in range(workload.steps):
        with booked(step == workload.steps - 1) as book:
            total = 0.0
            for micro in range(setting.accumulate):
                for rank in range(me.world):
                    batch = on(me.device, workload.batch_of(step, micro, rank))
                    loss = model(**batch).loss
                    (loss / parts).backward()
                    total += loss.item() / parts
            if master:
                for p, copy in zip(trained, updated, strict=True):
                    copy.grad, p.grad = p.grad.float(), None
            clip = float("inf") if setting.clip is None else setting.clip
            norms.append(torch.nn.utils.clip_grad_norm_(updated, clip).item())
            optimizer.step()
            optimizer.zero_grad()
            if master:
                with torch.no_grad():
                    for p, copy in zip(trained, updated, strict=True):
                        p.copy_(copy)
            losses.append(total)
    del loss, batch
    held = held_by(before, model, optimizer)
    evidence = Evidence(type(model).__name__, type(optimizer).__name__, held, **traffic(book))
    return RunEvidence("dense", losses, norms, evidence)
