"""The work that all ways do: a small Transformers model, its batches, its hyperparameters.

A batch is a function of (step, micro-batch, rank), so that a loop and a DataLoader read the same
tokens in the same order. Lesson 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from course_lib.peers.ways.setting import NotThere

# Family → configuration class, model class, layer class.
FAMILIES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", "GPT2Block"),
    "llama": ("LlamaConfig", "LlamaForCausalLM", "LlamaDecoderLayer"),
    "t5": ("T5Config", "T5ForConditionalGeneration", "T5Block"),
}


def the_package():
    """Import Transformers; raise NotThere with the remedy if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise NotThere(
            f"Transformers cannot be imported ({error}); run pip install 'course_lib[huggingface]'"
        ) from error
    return transformers


@dataclass(frozen=True)
class Workload:
    """A model and its data. With `uneven`, labels end at different positions in each row, so ranks
    and micro-batches have different numbers of tokens."""

    family: str = "gpt2"
    vocabulary: int = 96
    hidden: int = 48
    heads: int = 4
    layers: int = 2
    length: int = 16
    batch: int = 2  # rows of a micro-batch
    steps: int = 6
    lr: float = 1e-2
    weight_decay: float = 0.1
    uneven: bool = False

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family={self.family!r} is not one of {', '.join(FAMILIES)}")

    @property
    def block(self) -> str:
        """The class of a layer, which a wrapping policy names."""
        return FAMILIES[self.family][2]

    def config(self):
        """Create the configuration without dropout, whose random numbers would differ by way."""
        own = {
            "gpt2": {
                "n_positions": self.length,
                "n_embd": self.hidden,
                "n_layer": self.layers,
                "n_head": self.heads,
                **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
                **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
            },
            "llama": {
                "hidden_size": self.hidden,
                "intermediate_size": 2 * self.hidden + 2,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": max(1, self.heads // 2),
                "max_position_embeddings": self.length,
                **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
            },
            "t5": {
                "d_model": self.hidden,
                "d_kv": self.hidden // self.heads,
                "d_ff": 2 * self.hidden,
                "num_layers": self.layers,
                "num_heads": self.heads,
                "dropout_rate": 0.0,
                "decoder_start_token_id": 0,
            },
        }[self.family]
        kind = getattr(the_package(), FAMILIES[self.family][0])
        return kind(vocab_size=self.vocabulary, use_cache=False, **own)

    def model_class(self):
        return getattr(the_package(), FAMILIES[self.family][1])

    def model(self) -> nn.Module:
        """Create the model with the same weights at every call, without changing random states."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.model_class()(self.config()).float()
        if self.family == "t5":
            # Its loss is a mean, but its forward accepts any keyword. So the Trainer would assume
            # division by all ranks' tokens, and train with N·k times the gradient.
            model.accepts_loss_kwargs = False
        return model

    def save(self, folder: str | Path) -> None:
        """Save the model as a Transformers folder (safetensors), for ways that shard while they
        load. If ranks have a group, Transformers writes only on rank 0."""
        self.model().save_pretrained(folder)

    def batch_of(self, step: int, micro: int, rank: int) -> dict[str, Tensor]:
        """Create one micro-batch of one rank; each token is a function of the previous token."""
        drawn = torch.Generator().manual_seed(1 + rank + 64 * (micro + 64 * step))
        v, rows = self.vocabulary, self.batch
        tokens = torch.empty(rows, self.length, dtype=torch.long)  # (b, s)
        tokens[:, 0] = torch.randint(1, v, (rows,), generator=drawn)
        for position in range(1, self.length):
            tokens[:, position] = (tokens[:, position - 1] + 7) % v
        labels = tokens.clone()
        labels[:, 0] = -100  # no position predicts it, but the Trainer would count it
        if self.uneven:
            ends = torch.randint(3, self.length + 1, (rows,), generator=drawn)
            labels[torch.arange(self.length) >= ends[:, None]] = -100
        return {"input_ids": tokens, "labels": labels}

    def rows(self, world: int, accumulate: int) -> Dataset:
        """Return all rows in the order in which a sampler without shuffling gives them to ranks."""
        return RowDataset(self, world, accumulate)


class RowDataset(Dataset):
    """A run's rows in order: all ranks' rows of a micro-batch, then the next micro-batch."""

    def __init__(self, workload: Workload, world: int, accumulate: int):
        self.workload, self.world, self.accumulate = workload, world, accumulate

    def __len__(self) -> int:
        return self.workload.steps * self.accumulate * self.world * self.workload.batch

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        turn, row = divmod(index, self.workload.batch)
        turn, rank = divmod(turn, self.world)
        step, micro = divmod(turn, self.accumulate)
        batch = self.workload.batch_of(step, micro, rank)
        return {name: tensor[row] for name, tensor in batch.items()}
