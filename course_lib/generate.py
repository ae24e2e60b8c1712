"""Text sampled from a model, sharded over tp or not: each rank offers its best vocabulary entries.

The largest of all logits is the largest of the ranks' maxima, so the logits are never gathered.
Gumbel noise, equal on every rank, turns the choice of the largest into a sample. Lesson 08.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.collectives import all_gather
from course_lib.collectives.agreement import any_goes_on, same_everywhere
from course_lib.collectives.call import Group, check_member
from course_lib.gpt import GPT, Cache, Config
from course_lib.gpt.padding import as_lists, left_padded, without_padding
from course_lib.layout import cut
from course_lib.tensor_parallel import VocabularyParallelHead
from course_lib.tensor_parallel.sequence import OwnTokens

LACKING = (
    ": this rank has no row. Give every rank a row, or pass synced=, the group over which the "
    "weights are sharded, so that a rank without a row takes part in the others' forward passes"
)


@torch.no_grad()
def generate(
    model: GPT,
    ids: Tensor | Sequence[Tensor | Sequence[int]],
    count: int,
    *,
    temperature: float = 0.0,
    top: int | None = None,
    seed: int = 0,
    stop: int | None = None,
    group: Group | None = None,
    synced: Group | None = None,
) -> Tensor | list[Tensor]:
    """(b, s) prompts -> (b, s + count): the likeliest tokens at temperature 0, else sampled tokens.

    For prompts of unequal lengths, pass a list of the ids of each; the result is such a list too.
    They form one batch with padding on the left, to which no token attends.

    With `top`, only the `top` likeliest tokens are sampled. A row that has produced the token
    `stop` is filled with it. If a model is sharded over tp, every rank of that group (`group`, or
    the group of its head) must make this call with the same arguments, and all get the same tokens.
    Other dp ranks may pass other prompts. Without `stop` every rank runs `count` forward passes.

    `synced` is the group over which ZeRO's stage 3 has sharded the weights (synced_gpus elsewhere).
    Its ranks may have different prompts or counts, or no row. A rank that has finished takes part
    in gathers until all have finished. Without `synced`, ranks with different numbers of forward
    passes would wait for each other forever.

    Tokens are chosen in float64 from the logits. In float64, sharded and unsharded models therefore
    choose the same tokens. In float32 the logits of a sharded model differ in the last digits, so
    it may choose a different one of two nearly equal tokens, and the text then differs.

    `estimate.generation_bytes` predicts the bytes sent for each new token: the bytes of one token's
    forward pass, plus an all-gather of 16·b·k bytes from each rank, where k is `top`, or 1.
    """
    group = _group_of(model, group)
    device = next(model.parameters()).device
    idle, left, problem = torch.zeros((1, 1), dtype=torch.long, device=device), 0, None
    try:
        _check_same(ids, (count, temperature, top, seed, stop), group)
        rows, padding = left_padded(ids, device)  # (b, s), (b,)
        check_text(model.config, rows, count, temperature, top, stop, none=synced is not None)
        left, words, new = count if len(rows) else 0, [rows], rows
        past = [Cache(padding) for _ in model.blocks]
        done = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)  # (b,)
    except (TypeError, ValueError) as error:
        problem = error
    vocabulary, noise = Vocabulary.of(model, group), torch.Generator().manual_seed(seed)
    with _evaluating(model):
        while any_goes_on(left > 0, synced, "no rank writes on", problem):
            if not left:
                _last_logits(model, idle, None)  # the other ranks need this rank's shards
                continue
            logits = _last_logits(model, new, past)  # (b, v/tp)
            try:
                chosen = _choose(vocabulary, logits, temperature, top, noise)  # (b,)
            except ValueError as error:
                left, problem = 0, error
                continue
            if stop is not None:
                chosen = torch.where(done, stop, chosen)
                done = done | (chosen == stop)
            new = chosen[:, None].to(rows.dtype)  # (b, 1)
            words.append(new)
            left -= 1
            if stop is not None and bool(done.all()):
                left = 0
    made = torch.cat(words, 1)
    rest = rows.shape[1] + count - made.shape[1]
    if rest:  # all rows have produced `stop`, or there is no row
        made = torch.cat((made, made.new_full((len(rows), rest), stop or 0)), 1)
    return made if isinstance(ids, Tensor) else without_padding(made, padding)


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary as seen on one rank: all entries, and the range of this rank's logits."""

    entries: int  # ids 0 to entries − 1; rows of the head beyond them are padding
    start: int  # the entry of this rank's first logit
    widest: int  # the largest number of logits on any rank
    group: Group | None  # the ranks with the other logits; None if this rank has all of them

    @classmethod
    def of(cls, model: GPT, group: Group | None) -> Vocabulary:
        """Describe the vocabulary of a model whose head is sharded over `group`, if any."""
        entries = model.config.vocabulary
        if group is None:
            return cls(entries, 0, entries, None)
        return cls(entries, model.tokens.start, cut(model.tokens.padded, group.size())[0], group)

    def likeliest(
        self, values: Tensor, ids: Tensor, offered: int, kept: int = 1
    ) -> tuple[Tensor, Tensor]:
        """(b, v/tp) values of this rank -> the `kept` largest of all ranks, with ids, (b, kept).

        Each rank offers its `offered` largest. Of equal values, the lowest ids come first.
        """
        if offered == 1 and values.shape[1]:  # max returns the first of equal values
            values, at = values.max(1, keepdim=True)
        else:
            values, at = values.sort(dim=1, descending=True, stable=True)
        values, ids = values[:, :offered], ids[at[:, :offered]]
        missing = offered - values.shape[1]  # this rank has fewer entries
        values = nn.functional.pad(values, (0, missing), value=-math.inf)
        ids = nn.functional.pad(ids, (0, missing), value=self.entries)
        if self.group is not None:
            pairs = torch.stack((values, ids.double()), -1)  # (b, offered, 2), exact for ids
            pairs = all_gather(pairs, self.group, dim=1)  # (b, n·offered, 2), lower ids first
            values, ids = pairs[..., 0], pairs[..., 1].long()
            values, at = values.sort(dim=1, descending=True, stable=True)
            ids = ids.gather(1, at)
        values, ids = values[:, :kept], ids[:, :kept]
        if bool(values.isnan().any()):
            raise ValueError("the model's logits are NaN, so no token is the likeliest")
        return values, ids


def _choose(
    vocabulary: Vocabulary,
    logits: Tensor,
    temperature: float,
    top: int | None,
    noise: torch.Generator,
) -> Tensor:
    """(b, v/tp) local logits -> (b,) chosen token ids."""
    entries, start, stop = vocabulary.entries, vocabulary.start, vocabulary.start + logits.shape[-1]
    ids = torch.arange(start, stop, device=logits.device)  # (v/tp,)
    values = logits.double().masked_fill(ids >= entries, -math.inf)  # padding has no entry
    if not temperature:
        return vocabulary.likeliest(values, ids, 1)[1][:, 0]
    # Drawn for all entries on every rank, so that an entry's noise does not depend on its rank.
    size = len(logits), entries
    uniform = torch.rand(size, generator=noise, dtype=torch.float64, device=noise.device)
    if top is None:
        own = uniform[:, start:stop].to(logits.device)
        values[:, : own.shape[1]] = values[:, : own.shape[1]] / temperature + _gumbel(own)
        return vocabulary.likeliest(values, ids, 1)[1][:, 0]
    offered, kept = min(top, vocabulary.widest), min(top, entries)
    values, ids = vocabulary.likeliest(values, ids, offered, kept)  # (b, k) each
    noises = _gumbel(uniform.gather(1, ids.cpu().clamp(max=entries - 1)))  # (b, k)
    best = (values / temperature + noises.to(values.device)).argmax(1, keepdim=True)
    return ids.gather(1, best)[:, 0]


def _gumbel(uniform: Tensor) -> Tensor:
    """Return noise such that the largest of (logits + noise) is a sample from their softmax."""
    return -(-uniform.log()).log()


def _last_logits(model: GPT, ids: Tensor, past: list[Cache] | None) -> Tensor:
    """(b, s) new ids -> (b, v/tp) logits after the last id. This calls the model itself, because
    stage 3 has its hooks there."""
    way = getattr(model.head, "way", None)
    if isinstance(way, OwnTokens):  # the head takes this rank's tokens and gathers the rest
        return model(ids, past)[:, -1]
    return model(ids, past, head=lambda x: model.head(x[:, -1:]))[:, 0]


def _group_of(model: GPT, group: Group | None) -> Group | None:
    """Return the group over which the model is sharded, or None for an unsharded model."""
    own = model.head.group if isinstance(model.head, VocabularyParallelHead) else None
    if own is None and group is not None and group.size() > 1:
        raise ValueError(
            f"this model is not sharded, but a group of {group.size()} ranks was passed: each rank "
            "has all logits already. Leave group out, or shard the model with parallelize"
        )
    if own is not None and group is not None and group.group_name != own.group_name:
        raise ValueError(
            f"rank {own.rank()}: the model is sharded over a different group than the one passed. "
            'Pass mesh.get_group("tp"), or leave group out'
        )
    if own is not None:
        check_member(own)
    return own


def _check_same(ids: object, settings: tuple, group: Group | None) -> None:
    """Raise on every rank of tp unless all of them have the same prompts and settings."""
    if group is not None:  # first, so that every rank raises the same errors
        lists = as_lists(ids)
        shape = tuple(ids.shape) if isinstance(ids, Tensor) else [len(row) for row in lists]
        settings = shape, *settings
        same_everywhere(
            (settings, lists),
            [group],
            "{ranks} of the group that holds this model got prompts or settings that differ from "
            "{first}",
            f"here (shape, count, temperature, top, seed, stop) = {settings}. Pass the same on "
            "each of these ranks",
            error=ValueError,
        )


def check_text(
    config: Config,
    ids: Tensor,
    count: int,
    temperature: float,
    top: int | None,
    stop: int | None,
    *,
    none: bool = False,
) -> None:
    """Raise if prompts or settings cannot produce text. `none` allows a batch without rows."""
    if ids.dim() != 2 or not ids.shape[1] or not (len(ids) or none) or ids.is_floating_point():
        raise ValueError(
            f"prompts must be (b, s) token ids, but here is {ids.dtype} {tuple(ids.shape)}"
            + (LACKING if ids.dim() == 2 and not len(ids) else "")
        )
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= config.vocabulary):
        raise ValueError(
            f"the prompts hold ids from {int(ids.min())} to {int(ids.max())}, but tokens are 0 to "
            f"{config.vocabulary - 1}"
        )
    if count < 0:
        raise ValueError(f"count={count} new tokens are impossible; it must be 0 or more")
    if ids.shape[1] + count > config.length:
        raise ValueError(
            f"a prompt of {ids.shape[1]} tokens and count={count} new tokens are "
            f"{ids.shape[1] + count}, above length={config.length} in the config. Take a shorter "
            f"prompt, or count={max(0, config.length - ids.shape[1])} at most"
        )
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be 0 (the likeliest token) or more")
    if top is not None and top < 1:
        raise ValueError(f"top={top} leaves no token to choose from; take 1 or more, or None")
    if stop is not None and not 0 <= stop < config.vocabulary:
        raise ValueError(f"stop={stop} is not a token; tokens are 0 to {config.vocabulary - 1}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout off in the body, and restore the mode of every module at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
