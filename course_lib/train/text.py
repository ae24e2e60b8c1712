"""The sequences of a run: a corpus, what of it is held back, and this rank's share of each step.

The validation loss is the mean over the held-back tokens, the same ones every time, without
dropout. Lesson 08.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks
from course_lib.data import Batches, Corpus, prepare
from course_lib.gpt import GPT
from course_lib.step.losses import loss_sum, valid
from course_lib.step.pieces import axes
from course_lib.step.step import tally
from course_lib.train.options import Options, Refused
from course_lib.train.record import Failed

BATCHES = 4  # of a validation, at most


class Text:
    """`next_batch()` for training, `validation_loss(model)` on what is held back."""

    def __init__(self, options: Options, me: ranks.Me, mesh: DeviceMesh, out: Path, model: GPT):
        try:
            corpus = prepare(
                dist.group.WORLD,
                out / "corpus",
                vocabulary=model.config.vocabulary,
                most_bytes=options.corpus_bytes,
            )
            self.tokenizer_json = corpus.tokenizer_json
            _check_tokenizer(options, corpus.tokenizer_json)
        except Refused:
            raise
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            raise Failed(f"the corpus: {error}") from error
        self.options, self.mesh, self.device = options, mesh, me.device
        training, self.rest = held_back(corpus, options.held_back)
        try:  # on all ranks alike, as what follows
            self.batches = self._batches(training, seed=options.seed)
        except ValueError as error:
            raise Refused(
                f"the corpus: {error} (that is --rows, --length, --corpus-bytes, --held-back)"
            ) from error
        self.next_batch = self.batches.__next__
        self.why_no_validation = ""
        try:
            self._batches(self.rest)
        except ValueError as error:
            self.why_no_validation = (
                f"no validation loss: of what is held back, {error}; raise --held-back or "
                "--corpus-bytes"
            )

    def _batches(self, corpus: Corpus, **more: object) -> Batches:
        options = self.options
        return Batches(
            corpus, rows=options.micro_rows, length=options.length, dp=self.mesh,
            pack=options.pack, device=self.device, **more,
        )  # fmt: skip

    @torch.no_grad()
    def validation_loss(self, model: GPT) -> float | None:
        """The mean loss of the held-back tokens; None where they make no sequence for each replica.
        Every rank calls it."""
        if self.why_no_validation:
            return None
        options, batches, total, count = self.options, self._batches(self.rest), 0.0, 0
        training = model.training
        model.eval()
        try:
            for _ in range(min(BATCHES, batches.known // options.micro_rows)):
                batch = next(batches)
                loss = loss_sum(model, batch.ids, batch.targets, fused=options.fused_loss)
                total, count = total + loss.item(), count + valid(batch.targets)
        finally:
            model.train(training)
        every = tally(total, count, False, axes(self.mesh))
        return every.loss / every.tokens if every.tokens else None


def held_back(corpus: Corpus, part: float) -> tuple[Corpus, Corpus]:
    """A corpus in two: for training, and its last tokens, which no training sees."""
    tokens, starts = corpus.tokens, corpus.starts
    at = tokens.numel() - math.floor(tokens.numel() * part)
    training = Corpus(tokens[:at], starts[starts < at], corpus.tokenizer_json)
    rest = torch.cat((starts.new_tensor([at]), starts[starts > at])) - at
    rest = rest if at < tokens.numel() else rest[:0]
    return training, Corpus(tokens[at:], rest, corpus.tokenizer_json)


def _check_tokenizer(options: Options, tokenizer_json: str) -> None:
    """Weights mean what their entries mean: another tokenizer's ids would be noise to them."""
    beside = Path(options.from_) / "tokenizer.json"
    if options.from_ and beside.is_file() and beside.read_text() != tokenizer_json:
        raise Refused(
            f"--from {options.from_} has a tokenizer of its own, and the corpus here gives another "
            f"({options.corpus_bytes} bytes of this Python's sources): take the --corpus-bytes and "
            "the Python that it was trained with"
        )
