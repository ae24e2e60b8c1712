"""Mistakes in course_lib/gpt/: the config, the start, dropout, the whole model."""

from tests.mutation import Mutant

OURS, THEIRS = "tests/test_gpt.py::", "tests/test_gpt_transformers.py::"

REFUSED = OURS + "test_a_config_that_cannot_be_is_refused"
TRAITS = OURS + "test_configs_say_what_a_family_is"
START = OURS + "test_start"
TIED = OURS + "test_a_tied_head_gets_both_gradients_and_stays_tied"
DROPOUT = OURS + "test_where_dropout_happens"
RECOMPUTED = OURS + "test_recomputed_is_stored_bit_by_bit"
CACHE = OURS + "test_with_a_cache_pieces_are_the_whole"
LONG = OURS + "test_a_sequence_that_is_too_long"
GPT2 = THEIRS + "test_gpt2[published]"


def config(name: str, old: str, new: str, test: str, why: str, trap=None) -> Mutant:
    return Mutant(f"gpt-{name}", "course_lib/gpt/config.py", old, new, (test,), why, trap)


def model(name: str, old: str, new: str, test: str, why: str, trap=None) -> Mutant:
    return Mutant(f"gpt-{name}", "course_lib/gpt/model.py", old, new, (test,), why, trap)


MUTANTS = [
    config(
        "misspelt-key-dropped",
        '            raise ValueError(f"a config has no key {key!r}',
        '            print(f"a config has no key {key!r}',
        REFUSED,
        "a misspelt key is no more than a remark",
        "T34",
    ),
    config(
        "no-suggestion",
        'f"; did you mean {near[0]!r}?" if near else "."',
        '"."',
        REFUSED,
        "the key that was meant is not named",
        "T34",
    ),
    config(
        "true-is-one",
        "if isinstance(value, bool) or not isinstance(value, int) or value < 1:",
        "if not isinstance(value, int) or value < 1:",
        REFUSED,
        "layers=True is one layer",
    ),
    config(
        "everything-dropped",
        "if not 0 <= getattr(self, name) < 1:",
        "if not 0 <= getattr(self, name) <= 1:",
        REFUSED,
        "dropout of 1",
    ),
    config(
        "queries-that-do-not-share-out",
        "if self.heads % self.kv_heads:",
        "if self.heads < self.kv_heads:",
        REFUSED,
        "6 heads over 4 key/value heads",
        "T13",
    ),
    config(
        "family-over-word",
        "{**traits, **keys}",
        "{**keys, **traits}",
        TRAITS,
        "what is said explicitly does not count",
    ),
    model(
        "joining-weights-large",
        "scale = (2 * self.config.layers) ** -0.5 if joins else 1.0",
        "scale = 1.0",
        START,
        "the residual grows with the number of layers",
        "T15",
    ),
    model(
        "one-branch-of-two",
        '"out.weight", "down.weight"',
        '"out.weight", "proj.weight"',
        START,
        "one kind of branch starts too large",
        "T15",
    ),
    model(
        "biases-start-anywhere",
        "            parameter.zero_()\n",
        "            pass\n",
        START,
        "biases keep nn.Linear's random start",
        "T15",
    ),
    model(
        "tied-by-value",
        "self.head.weight = self.tokens.weight",
        "self.head.weight.copy_(self.tokens.weight)",
        TIED,
        "the head starts like the table and then goes its own way",
        "T17",
    ),
    model(
        "no-dropout-at-the-start",
        "        return self.dropout(x)\n",
        "        return x\n",
        DROPOUT,
        "the embedding is not dropped out",
    ),
    model(
        "one-branch-dropped",
        "return x + self.dropout(self.mlp(self.norm_2(x)))",
        "return x + self.mlp(self.norm_2(x))",
        DROPOUT,
        "the MLP's branch is not dropped out",
    ),
    model(
        "norm-left-out",
        "self.mlp(self.norm_2(x))",
        "self.mlp(x)",
        GPT2,
        "the MLP reads what is not normed",
    ),
    model(
        "last-norm-left-out",
        "        return self.norm(x)\n",
        "        return x\n",
        GPT2,
        "the head reads what is not normed",
    ),
    model(
        "positions-left-out",
        "x = x + self.positions(",
        "x = x + 0 * self.positions(",
        GPT2,
        "every place is alike",
    ),
    model(
        "recompute-new-masks",
        "checkpoint(block, x, use_reentrant=False)",
        "checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)",
        RECOMPUTED,
        "the recomputed block drops other elements",
        "T14",
    ),
    model(
        "recompute-nothing",
        "if self.config.recompute and torch.is_grad_enabled() and past is None:",
        "if False:",
        RECOMPUTED,
        "everything is kept in spite of recompute=True",
    ),
    model(
        "any-length",
        "        if stop > longest:\n",
        "        if False:\n",
        LONG,
        "a Llama reads on beyond its length",
    ),
    model(
        "cache-positions",
        "places = torch.arange(first, stop, device=ids.device)",
        "places = torch.arange(stop - first, device=ids.device)",
        CACHE,
        "with a cache each piece stands at the beginning",
    ),
    model(
        "cache-any-length",
        "self.embed(ids, before.length, before.padding)",
        "self.embed(ids)",
        CACHE,
        "a piece is counted without what came before it",
    ),
]

UNCHECKED = {
    "if getattr(self, name) not in valid:": "an unknown norm becomes the other one",
    "if self.hidden % self.heads:": "hidden=50 with 12 heads",
    'if self.position == "rotary" and self.head_size % 2:': "a head of 3 turned in pairs",
}
MUTANTS += [
    config(f"unchecked-{number}", check, "if False:", REFUSED, why)
    for number, (check, why) in enumerate(UNCHECKED.items())
]
