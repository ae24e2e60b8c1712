"""Streamed weights in DeepSpeed: ZeRO inference of a Transformers model with synced_gpus=True.

Without an optimizer, stage 3 holds only the weights, on the device or the host. Under
`HfDeepSpeedConfig`, `from_pretrained` shards while it loads. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from course_lib import ranks
from course_lib.gpt.padding import left_padded, without_padding
from course_lib.peers.ways.launched import launched, quiet
from course_lib.peers.ways.with_deepspeed import started


def zero_config(*, offload: str | None = None, precision: str = "float32") -> dict:
    """Return DeepSpeed's config for weights that are streamed and not trained."""
    zero: dict = {
        "stage": 3,
        "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
    if offload is not None:
        zero["offload_param"] = {"device": offload, "pin_memory": False}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    if precision == "bfloat16":
        config["bf16"] = {"enabled": True}
    return config


@contextmanager
def streaming(
    me: ranks.Me,
    make: Callable[[], nn.Module],
    *,
    offload: str | None = None,
    precision: str = "float32",
) -> Iterator[object]:
    """Yield DeepSpeed's engine for the model of `make()`. It is called while an `HfDeepSpeedConfig`
    exists, so that `from_pretrained` never loads the full model. All ranks must enter and leave the
    context together."""
    if offload not in (None, "cpu"):
        raise ValueError(f"offload={offload!r} is neither None nor 'cpu'")
    with launched(me), quiet():
        deepspeed = started(me)
        from transformers.integrations import HfDeepSpeedConfig

        linear = nn.functional.linear  # which stage 3 replaces permanently, for all models
        config = zero_config(offload=offload, precision=precision)
        alive = HfDeepSpeedConfig(config)  # from_pretrained sees it while this name exists
        try:
            model = make().eval()
            engine, *_ = deepspeed.initialize(model=model, config=config)
            del alive
            try:
                yield engine
            finally:
                engine.destroy()
        finally:
            nn.functional.linear = linear


@torch.no_grad()
def write(
    model: nn.Module,
    prompts: Sequence[Tensor | Sequence[int]],
    count: int,
    *,
    stop: int | None = None,
    synced: bool = False,
) -> list[list[int]]:
    """Generate the likeliest tokens after prompts of unequal lengths with Transformers' `generate`.
    Results have no padding and end at the first `stop`; `synced` is synced_gpus.
    """
    ids, padding = left_padded(list(prompts), next(model.parameters()).device)
    mask = torch.ones_like(ids)
    if padding is not None:
        mask = (torch.arange(ids.shape[1], device=ids.device) >= padding[:, None]).long()
    how = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0, "eos_token_id": stop}
    if stop is None:
        how["min_new_tokens"] = count
    with quiet():
        out = model.generate(ids, attention_mask=mask, synced_gpus=synced, **how)
    rows = without_padding(out, padding)
    return [ended(row.tolist(), len(p), stop) for row, p in zip(rows, prompts, strict=True)]


def ended(row: list[int], first: int, stop: int | None) -> list[int]:
    """Cut a row after the first `stop` at position `first` or later."""
    if stop is None or stop not in row[first:]:
        return row
    return row[: row.index(stop, first) + 1]
