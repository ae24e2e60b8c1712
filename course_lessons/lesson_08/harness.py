"""Two small checkpoints, a rank's reads of them, and twenty steps, here and on four ranks.

Transformers writes the checkpoints, with random weights; `course_lib.step` runs the steps. Lesson
08.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data import Batches, Corpus, prepare
from course_lib.layout import cut, heads
from course_lib.ledger import Book, ledger
from course_lib.memory import held
from course_lib.pretrained import from_pretrained
from course_lib.ranks import Me
from course_lib.ranks import mesh as mesh_of
from course_lib.step import StepResult, step
from course_lib.tensor_parallel import check_replicas

VOCABULARY, LENGTH = 293, 48
ROWS, CLIP, RATE = 12, 0.5, 2e-3


def save_two_models(home: str) -> dict[str, nn.Module]:
    """Write `home/gpt2` and `home/llama` with transformers; return the models in evaluation mode.

    All parameters are random, including biases and norms, because zeros hide double additions.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rest = {"bos_token_id": None, "eos_token_id": None, "vocab_size": VOCABULARY}
    sizes = {"n_positions": LENGTH, "n_embd": 48, "n_layer": 2, "n_head": 6}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    gpt2 = transformers.GPT2Config(**sizes, **dropouts, **rest)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 150}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 4}
    llama = transformers.LlamaConfig(max_position_embeddings=LENGTH, **sizes, **rest)
    models = {
        "gpt2": transformers.GPT2LMHeadModel(gpt2).eval(),
        "llama": transformers.LlamaForCausalLM(llama).eval(),
    }
    drawn = torch.Generator().manual_seed(8)
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                wide = parameter.dim() > 1
                noise = torch.randn(parameter.shape, generator=drawn)
                parameter.copy_((0.05 if wide else 0.2) * noise + (0.0 if wide else parameter))
        model.save_pretrained(f"{home}/{name}")
    return models


@contextmanager
def reads() -> Iterator[list[int]]:
    """Yield a list that collects the bytes of each read of a checkpoint through `os.pread`."""
    plain, came = os.pread, []

    def noted(file, size, at):
        data = plain(file, size, at)
        came.append(len(data))
        return data

    with patch.object(os, "pread", noted):
        yield came


class Run(NamedTuple):
    """A model and its optimizer after some steps, the step results, and the first step's ledger."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    results: list[StepResult]
    book: Book


def train(
    place: str, mesh: DeviceMesh | None, data: Batches, device: torch.device, steps: int = 20
) -> Run:
    """Load a checkpoint onto a mesh in float64, and train with AdamW and clipping."""
    model = from_pretrained(place, mesh, device=device, dtype=torch.float64).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    results, first = [], None
    for _ in range(steps):
        batch = next(data)
        with ledger(mesh) as book:
            pairs = [(batch.ids, batch.targets)]
            results.append(step(model, optimizer, pairs, mesh, clip=CLIP))
        first = first or book
    if mesh is not None:
        check_replicas(model, mesh.get_group("tp"))
    return Run(model, optimizer, results, first)


def batches(
    corpus: Corpus, dp: DeviceMesh | tuple[int, int], device: torch.device | str = "cpu"
) -> Batches:
    """Return twelve rows per step, of which this rank takes the rows of its dp coordinate."""
    return Batches(corpus, rows=ROWS, length=LENGTH, dp=dp, seed=8, pack=False, device=device)


def parameters_of(model: nn.Module, rank: int, tp: int) -> tuple[int, int]:
    """Return, by the formula, the numbers of elements in a GPT's shards and in replicated tensors
    on rank `rank` of `tp`."""
    c = model.config
    h, layers = c.hidden, c.layers
    kv = heads(c.kv_heads, tp)[rank] * c.head_size
    q = kv * c.heads // c.kv_heads
    inner, words = cut(c.inner, tp)[rank], cut(c.vocabulary, tp)[rank]
    ups = 2 if c.activation == "swiglu" else 1
    biases = (q + 2 * kv + inner) if c.bias else 0
    block = h * (q + 2 * kv) + q * h + (ups + 1) * inner * h + biases
    shards = words * h * (1 if c.tied else 2) + layers * block
    norms = (2 * layers + 1) * h * (2 if c.norm == "layer" else 1)
    row_biases = 2 * layers * h if c.bias else 0
    places = c.length * h if c.position == "learned" else 0
    return shards, norms + row_biases + places


def bytes_held(run: Run) -> int:
    """Return the bytes of this rank's parameters, gradients and AdamW moments by the memory meter,
    without AdamW's four-byte step counters."""
    counters = 4 * len(list(run.model.parameters()))
    return sum(held(run.model, run.optimizer).by_kind.values()) - counters


class Report(NamedTuple):
    """One rank's report after twenty steps of each family."""

    rows: tuple[int, ...]  # in the first step
    results: dict[str, list[StepResult]]  # by family
    sent: dict[str, tuple[float, float]]  # bytes over tp and over dp in the first step
    held: dict[str, int]  # bytes


def on_a_mesh(me: Me, home: str, dp: int, tp: int) -> Report:
    """Run twenty steps of both families on a (dp, tp) mesh, from the files in `home`."""
    mesh = mesh_of(me, dp=dp, tp=tp)
    documents = json.loads(Path(home, "documents.json").read_text()) if me.rank == 0 else None
    corpus = prepare(dist.group.WORLD, documents=documents, vocabulary=VOCABULARY)
    rows = next(batches(corpus, mesh)).rows
    results, sent, kept = {}, {}, {}
    for name in ("gpt2", "llama"):
        run = train(f"{home}/{name}", mesh, batches(corpus, mesh, me.device), me.device)
        results[name] = run.results
        sent[name] = run.book.bytes(axis="tp"), run.book.bytes(axis="dp")
        kept[name] = bytes_held(run)
    return Report(rows, results, sent, kept)


def llama_of_twelve_heads() -> nn.Module:
    """Return a Llama of transformers in float64, equal on all ranks; its heads and inner MLP size
    are divisible by 2, 3 and 4, as torch's plans need."""
    import transformers

    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "hidden_size": 96}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 12, "num_key_value_heads": 12}
    sizes |= {"intermediate_size": 144, "bos_token_id": None, "eos_token_id": None}
    config = transformers.LlamaConfig(**sizes)
    torch.manual_seed(8)
    return transformers.LlamaForCausalLM(config).double()
