"""The same in DeepSpeed: ZeRO inference of a Transformers model, `generate(synced_gpus=True)`.

Without an optimizer stage 3 holds the weights alone, on the device, the host or in files. Made
under `HfDeepSpeedConfig`, `from_pretrained` shards while it loads. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from course_lib import ranks
from course_lib.gpt.padding import left_padded, without_padding
from course_lib.ways.launched import launched, quiet
from course_lib.ways.setting import NotThere
from course_lib.ways.with_deepspeed import has_files, has_fp16, imported

BUFFERS = 5  # pieces of memory through which files are read, DeepSpeed's own default
IN_A_FILE = 1 << 20  # bytes: a rank's piece of a parameter that is smaller stays in memory


def zero_config(
    *, offload: str | None = None, folder: str | Path | None = None, largest: int = 0,
    precision: str = "float32",
) -> dict:  # fmt: skip
    """DeepSpeed's config for weights that are streamed and not trained. `largest`: elements of the
    largest parameter, which a buffer of the files has to take."""
    zero: dict = {
        "stage": 3,
        "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
    if offload is not None:
        zero["offload_param"] = {"device": offload, "pin_memory": False}
    if offload == "nvme":
        zero["offload_param"] |= {
            "nvme_path": str(folder), "buffer_size": largest, "buffer_count": BUFFERS,
        }  # fmt: skip
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
    folder: str | Path | None = None,
    largest: int = 0,
    precision: str = "float32",
) -> Iterator[object]:
    """DeepSpeed's engine around what `make()` returns, called while an `HfDeepSpeedConfig` is
    alive: a `from_pretrained` in it never holds the model whole. All ranks call it alike, at exit
    too. Of files it makes one for each piece of `IN_A_FILE` bytes or more."""
    check(offload, folder, largest, precision)
    with launched(me), quiet():
        deepspeed = imported()
        from transformers.integrations import HfDeepSpeedConfig

        deepspeed.init_distributed(
            dist_backend="nccl" if me.backend == "nccl" else "gloo", verbose=False
        )
        linear = nn.functional.linear  # which stage 3 exchanges for good, for all models
        config = zero_config(offload=offload, folder=folder, largest=largest, precision=precision)
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


def check(offload: str | None, folder: str | Path | None, largest: int, precision: str) -> None:
    """Refuse what DeepSpeed would make something else of, or fail at late."""
    if offload not in (None, "cpu", "nvme"):
        raise ValueError(f"offload={offload!r} is none of None, 'cpu', 'nvme'")
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"precision={precision!r} is none of float32, bfloat16")
    if offload != "nvme":
        return
    if folder is None or not Path(folder).is_dir():
        raise ValueError(f"the folder {folder} is missing, and DeepSpeed would make it")
    if largest < 1:
        raise ValueError(
            "offload='nvme' reads through buffers that are made before the model: pass largest=, "
            "the elements of its largest parameter"
        )
    if not has_files():
        raise NotThere(
            "DeepSpeed's offload to files compiles its extension async_io, which needs a C++ "
            "compiler and libaio's headers (Debian: apt install g++ libaio-dev)"
        )
    if precision == "float32" and not has_fp16():
        raise NotThere(
            "DeepSpeed holds parameters in files as bfloat16 where its accelerator has no fp16, as "
            "on most CPUs, and a float32 model then meets two dtypes in one product: pass "
            "precision='bfloat16' and a model in it. What is rounded away, `differences` shows"
        )


@torch.no_grad()
def differences(engine, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """By name, how far the engine's parameters are from `weights` at most; all ranks call it. One
    parameter at a time is whole."""
    deepspeed, found = imported(), {}
    for name, p in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([p]):
            found[name] = (p.double() - weights[name].double()).abs().max().item()
    return found


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
