"""The sequences of a run: a corpus, its held-back part, and this rank's share of each step.

The validation loss is the mean over held-back tokens, the same tokens each time, without dropout.
Lesson 08.
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

BATCHES = 4  # at most, per validation


class Text:
    """The training data (`next_batch()`) and the held-back data (`validation_loss(model)`)."""

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
        try:  # the same on all ranks, as below
            self.batches = self._batches(training, seed=options.seed)
        except ValueError as error:
            raise Refused(
                f"the corpus: {error} (see --rows, --length, --corpus-bytes, --held-back)"
            ) from error
        self.next_batch = self.batches.__next__
        self.why_no_validation = ""
        try:
            self._batches(self.rest)
        except ValueError as error:
            self.why_no_validation = (
                f"no validation loss, because for the held-back part {error}; raise --held-back or "
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
        """Compute the mean loss of the held-back tokens, or return None if they are too few for all
        replicas. Every rank calls this method."""
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
    """Split a corpus in two: the training part, and its last tokens, which training never sees."""
    tokens, starts = corpus.tokens, corpus.starts
    at = tokens.numel() - math.floor(tokens.numel() * part)
    training = Corpus(tokens[:at], starts[starts < at], corpus.tokenizer_json)
    rest = torch.cat((starts.new_tensor([at]), starts[starts > at])) - at
    rest = rest if at < tokens.numel() else rest[:0]
    return training, Corpus(tokens[at:], rest, corpus.tokenizer_json)


def _check_tokenizer(options: Options, tokenizer_json: str) -> None:
    """Refuse weights of a different tokenizer, because its token ids would be meaningless here."""
    beside = Path(options.from_) / "tokenizer.json"
    if options.from_ and beside.is_file() and beside.read_text() != tokenizer_json:
        raise Refused(
            f"--from {options.from_} has a different tokenizer than the corpus here "
            f"({options.corpus_bytes} bytes of this Python's sources); use the same --corpus-bytes "
            "and Python as in its training"
        )
