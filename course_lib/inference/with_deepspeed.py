"""The same in DeepSpeed: ZeRO inference of a Transformers model, `generate(synced_gpus=True)`.

Without an optimizer stage 3 holds the weights alone, on the device or the host. Made under
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
    """DeepSpeed's config for weights that are streamed and not trained."""
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
    """DeepSpeed's engine around what `make()` returns, called while an `HfDeepSpeedConfig` is
    alive: a `from_pretrained` in it never holds the model whole. All ranks call it alike, at exit
    too."""
    if offload not in (None, "cpu"):
        raise ValueError(f"offload={offload!r} is neither None nor 'cpu'")
    with launched(me), quiet():
        deepspeed = started(me)
        from transformers.integrations import HfDeepSpeedConfig

        linear = nn.functional.linear  # which stage 3 exchanges for good, for all models
        config = zero_config(offload=offload, precision=precision)
        alive = HfDeepSpeedConfig(config)  # from_pretrained sees it for as long as this name lives
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
    """The likeliest words after unequal prompts, by Transformers' `generate`: padded on the left,
    with a mask. Each row without its padding, up to its first `stop`. `synced` is its synced_gpus.
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
    """A row up to the first `stop` that was written, from place `first` on."""
    if stop is None or stop not in row[first:]:
        return row
    return row[: row.index(stop, first) + 1]
