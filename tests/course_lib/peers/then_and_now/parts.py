"""What the tests of lesson 13's table share: two ranks that DeepSpeed knows, tiny models, data.

A rank of the tests' pool has its group already; DeepSpeed and accelerate take it over, and so a
test's ranks are made for that test alone.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings

import pytest

from course_lib.peers.ways.launched import variables
from course_lib.peers.ways.with_deepspeed import started

# Before anything of Hugging Face is imported: no test asks the hub for anything.
ENV = {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
WORDS = 64
needs_deepspeed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("deepspeed", "transformers")),
    reason="deepspeed or transformers is not installed "
    "(pip install 'course_lib[deepspeed,huggingface]')",
)


def run(pool, world, fn, *args, timeout=150):
    """fn(me, *args) on new ranks, whose groups nobody else uses."""
    return pool.run(world, fn, *args, timeout=timeout, env=ENV, alone=True)


def meet(me, local_rank=None):
    """DeepSpeed in this rank's group; the local rank of another node where one is named."""
    warnings.filterwarnings("ignore")
    os.environ.update(variables(me))
    if local_rank is not None:
        os.environ["LOCAL_RANK"] = str(local_rank)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return started(me)


def settings(stage, micro=2, **more):
    """A config for DeepSpeed itself; `zero` adds to its section."""
    zero = {"stage": stage, "reduce_bucket_size": 1000, **more.pop("zero", {})}
    if stage == 3:
        zero = {"stage3_param_persistence_threshold": 0, **zero}
    adamw = {"lr": 0.01, "weight_decay": 0.0, "torch_adam": True}
    return {
        "train_micro_batch_size_per_gpu": micro,
        "optimizer": {"type": "AdamW", "params": adamw},
        "zero_optimization": zero,
        "gradient_clipping": 0.0,
        **more,
    }


def batch_of(me, step):
    """What this rank trains on in a step."""
    import torch

    pairs = [Sentences()[4 * step + 2 * me.rank + i] for i in range(2)]
    return {name: torch.stack([pair[name] for pair in pairs]) for name in pairs[0]}


def gpt2_config(**more):
    from transformers import GPT2Config

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "n_positions": 32}
    quiet = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return GPT2Config(**{**sizes, **quiet, **dropout, **more})


def gpt2(seed=0, **more):
    import torch
    from transformers import GPT2LMHeadModel

    torch.manual_seed(seed)
    return GPT2LMHeadModel(gpt2_config(**more))


class Sentences:
    """`count` sequences of token ids whose next id follows from the one before."""

    def __init__(self, count=32, length=12, first=0):
        self.count, self.length, self.first = count, length, first

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        import torch

        if not 0 <= i < self.count:
            raise IndexError(i)
        ids = (torch.arange(self.length) * 3 + 7 * (i + self.first)) % (WORDS - 2) + 2
        return {"input_ids": ids, "labels": ids.clone()}


def arguments(folder, kind=None, **more):
    """TrainingArguments for a short, quiet run on the CPU."""
    from transformers import TrainingArguments

    plain = {
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
        "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "max_steps": 4,
        "learning_rate": 0.01, "logging_steps": 1, "log_level": "error", "seed": 3,
    }  # fmt: skip
    return (kind or TrainingArguments)(output_dir=str(folder), **{**plain, **more})
