"""Sample text from a model, whole or cut over tp: each rank offers its best vocabulary entries.

The largest logit of all is the largest of the ranks' largest, so the logits are never gathered.
Gumbel noise, drawn alike on every rank for every entry, makes a sample out of a largest. Lesson 08.
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
    ": this rank has no row. Give every rank one, or pass synced=, the group that the weights are "
    "sharded over, with which a rank without a row takes part in the others' forwards"
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
    """(b, s) prompts to (b, s + count): at temperature 0 the likeliest word each time, else drawn.

    Prompts of unequal lengths are a list of ids for each, and so is the text: they are written as
    one batch, with padding on the left that no token looks at.

    `top` draws among that many likeliest words. A row that has met the word `stop` is filled up
    with it. A model that is cut over tp is called by every rank of that group (`group`, or the one
    that its head was cut over), with the same arguments, and all get the same words; other dp ranks
    may ask for other prompts. Without `stop` every rank makes `count` forwards, whatever it writes.

    `synced`: the group over which ZeRO's stage 3 has sharded the weights (synced_gpus elsewhere).
    Its ranks may have other prompts, other counts, or no row at all; one that is done goes on
    taking part in the gathers until all are. Without it, ranks that make different numbers of
    forwards wait for each other for ever.

    Chosen in float64 out of the logits as they come: cut or not, float64 draws the same words. In
    float32 a cut model's logits differ in the last digits, so where two words are that close, it
    may take the other, and what follows is another text.

    `estimate.generation_bytes` says what it sends: for each new word what one token's forward
    sends, and an all-gather of 16·b·k bytes from each rank, where k is `top`, or 1.
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
                _last_logits(model, idle, None)  # the others need this rank's shards
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
    if rest:  # all rows have met the word `stop`, or there is none
        made = torch.cat((made, made.new_full((len(rows), rest), stop or 0)), 1)
    return made if isinstance(ids, Tensor) else without_padding(made, padding)


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary as one rank sees it: its entries, and for which of them it has logits."""

    entries: int  # ids 0 to entries − 1; rows of the head beyond them are padding
    start: int  # the entry of this rank's first logit
    widest: int  # the most logits that any rank has
    group: Group | None  # the ranks that have the others; None where this rank has them all

    @classmethod
    def of(cls, model: GPT, group: Group | None) -> Vocabulary:
        """The vocabulary of a model whose head is cut over `group`, or over none."""
        entries = model.config.vocabulary
        if group is None:
            return cls(entries, 0, entries, None)
        return cls(entries, model.tokens.start, cut(model.tokens.padded, group.size())[0], group)

    def likeliest(
        self, values: Tensor, ids: Tensor, offered: int, kept: int = 1
    ) -> tuple[Tensor, Tensor]:
        """(b, v/tp) values of this rank → the `kept` largest of all ranks and their ids, (b, kept).

        Each rank offers its `offered` largest. Of equal values the lowest ids come first, as
        torch.argmax takes them.
        """
        if offered == 1 and values.shape[1]:  # no need to sort: max gives the first of equals
            values, at = values.max(1, keepdim=True)
        else:
            values, at = values.sort(dim=1, descending=True, stable=True)
        values, ids = values[:, :offered], ids[at[:, :offered]]
        missing = offered - values.shape[1]  # this rank has fewer entries
        values = nn.functional.pad(values, (0, missing), value=-math.inf)
        ids = nn.functional.pad(ids, (0, missing), value=self.entries)
        if self.group is not None:
            pairs = torch.stack((values, ids.double()), -1)  # (b, offered, 2): an id is exact there
            pairs = all_gather(pairs, self.group, dim=1)  # (b, n·offered, 2), lower ids first
            values, ids = pairs[..., 0], pairs[..., 1].long()
            values, at = values.sort(dim=1, descending=True, stable=True)
            ids = ids.gather(1, at)
        values, ids = values[:, :kept], ids[:, :kept]
        if bool(values.isnan().any()):
            raise ValueError("the model's logits are NaN: no word is the likeliest")
        return values, ids


def _choose(
    vocabulary: Vocabulary,
    logits: Tensor,
    temperature: float,
    top: int | None,
    noise: torch.Generator,
) -> Tensor:
    """(b, v/tp) local logits → (b,) chosen token ids."""
    entries, start, stop = vocabulary.entries, vocabulary.start, vocabulary.start + logits.shape[-1]
    ids = torch.arange(start, stop, device=logits.device)  # (v/tp,)
    values = logits.double().masked_fill(ids >= entries, -math.inf)  # padding is no entry
    if not temperature:
        return vocabulary.likeliest(values, ids, 1)[1][:, 0]
    # Drawn for all entries on every rank: whichever rank holds an entry gives it the same noise.
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
    """What makes the largest of (logits + noise) a draw from their softmax."""
    return -(-uniform.log()).log()


def _last_logits(model: GPT, ids: Tensor, past: list[Cache] | None) -> Tensor:
    """(b, s) new ids → (b, v/tp) logits after the last of them. By the model's own forward, where
    stage 3 has its hooks."""
    way = getattr(model.head, "way", None)
    if isinstance(way, OwnTokens):  # the head takes this rank's tokens, and gathers the others
        return model(ids, past)[:, -1]
    return model(ids, past, head=lambda x: model.head(x[:, -1:]))[:, 0]


def _group_of(model: GPT, group: Group | None) -> Group | None:
    """The group that the model is cut over; None for a whole one."""
    own = model.head.group if isinstance(model.head, VocabularyParallelHead) else None
    if own is None and group is not None and group.size() > 1:
        raise ValueError(
            f"this model is whole, and a group of {group.size()} ranks was passed: each rank has "
            "all logits already. Leave group out, or cut the model with parallelize"
        )
    if own is not None and group is not None and group.group_name != own.group_name:
        raise ValueError(
            f"rank {own.rank()}: the model is cut over another group than the one passed: pass "
            'mesh.get_group("tp"), or leave group out'
        )
    if own is not None:
        check_member(own)
    return own


def _check_same(ids: object, settings: tuple, group: Group | None) -> None:
    """Refuse, on every rank of tp, prompts or settings that are not the same on all of them."""
    if group is not None:  # first of all, so that what is refused is refused on every rank
        lists = as_lists(ids)
        shape = tuple(ids.shape) if isinstance(ids, Tensor) else [len(row) for row in lists]
        settings = shape, *settings
        same_everywhere(
            (settings, lists),
            [group],
            "{ranks} of the group that holds this model was given other prompts or settings than "
            "{first}",
            f"here (shape, count, temperature, top, seed, stop) = {settings}. Pass the same on "
            "every one of them",
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
    """Refuse prompts and settings that no text can be made of. `none`: there may be no row."""
    if ids.dim() != 2 or not ids.shape[1] or not (len(ids) or none) or ids.is_floating_point():
        raise ValueError(
            f"prompts are (b, s) token ids, and here is {ids.dtype} {tuple(ids.shape)}"
            + (LACKING if ids.dim() == 2 and not len(ids) else "")
        )
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= config.vocabulary):
        raise ValueError(
            f"the prompts hold ids from {int(ids.min())} to {int(ids.max())}, and words are 0 to "
            f"{config.vocabulary - 1}"
        )
    if count < 0:
        raise ValueError(f"count={count} new words cannot be made; it has to be 0 or more")
    if ids.shape[1] + count > config.length:
        raise ValueError(
            f"a prompt of {ids.shape[1]} tokens and count={count} new ones are "
            f"{ids.shape[1] + count}, above length={config.length} in the config; take a shorter "
            f"prompt, or count={max(0, config.length - ids.shape[1])} at most"
        )
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} has to be 0 (the likeliest word) or more")
    if top is not None and top < 1:
        raise ValueError(f"top={top} leaves no word to choose from; take 1 or more, or None")
    if stop is not None and not 0 <= stop < config.vocabulary:
        raise ValueError(f"stop={stop} is no word: words are 0 to {config.vocabulary - 1}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards every part is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
