"""What the tests of training share: shapes, a global batch of uneven rows, and the dense reference.

The reference is one process on all rows, in torch's own words; it knows nothing of ranks.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.gpt import Config
from course_lib.layout import heads as evenly
from course_lib.tensor_parallel.randomness import logical_masks, private
from tests.course_lib.tensor_parallel.parts import made

SIZES = {"vocabulary": 37, "length": 12, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)  # tied
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10)  # untied
FEW = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=2, inner=9)  # kv heads held twice at 4


def fits(config, tp):
    """A Llama whose key/value heads `tp` ranks can share: 2 of them at 2 and 4, else 3."""
    return FEW if config is LLAMA and tp in (2, 4) else config


def batch(step, config, rows, s, lost=None):
    """(ids, targets) of all ranks at a step: about a third of the targets is ignored, in `lost`
    (start, stop) rows all of them."""
    ids, targets, drop = ((made((step, k), rows, s) * 999).long().abs() for k in "itd")
    targets = torch.where(drop % 3 == 0, -100, targets % config.vocabulary)
    if lost is not None:
        targets[lost[0] : lost[1]] = -100
    return ids % config.vocabulary, targets


def share(rows, n, index):
    """The rows that one of n dp ranks takes: uneven where they do not divide."""
    sizes = evenly(rows, n)
    return sum(sizes[:index]), sum(sizes[: index + 1])


@contextlib.contextmanager
def masks(config, group=None, start=0, whole=0):
    """Dropout's masks as those of the whole batch, of which a dp rank has rows from `start` on."""
    if not config.dropout:
        yield
        return
    with logical_masks():
        if group is None:
            yield
        else:
            with private(group, dim=0, start=start, whole=whole):
                yield


def reference(dense, descent, batches, clip):
    """One step of one process: (loss, tokens, norm before clipping)."""
    tokens = sum(int((targets != -100).sum()) for _, targets in batches)
    total = 0.0
    for ids, targets in batches:
        logits = dense(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum") / tokens
        loss.backward()
        total += loss.item()
    most = 1e30 if clip is None else clip
    size = nn.utils.clip_grad_norm_(dense.parameters(), most).item()
    descent.step()
    return total, tokens, size
