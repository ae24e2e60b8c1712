"""Mistakes in course_lib/generate.py, and in the formula of what it sends."""

from dataclasses import replace

from tests.mutation import Mutant

FILE = "course_lib/generate.py"
FORMULA = "course_lib/estimate/generation.py"
ONE, CUT = "tests/test_generate.py::test_", "tests/test_generate_cut.py::test_"

PLAIN = ONE + "the_likeliest_words_are_those_of_a_plain_loop"
DRAWN = ONE + "a_word_is_drawn_from_the_softmax"
SEED = ONE + "a_seed_draws_one_text_and_another_seed_another"
PLACE = ONE + "noise_is_for_a_word_whatever_its_place_among_the_likeliest"
TIES = ONE + "of_equally_likely_words_the_first_is_taken"
STOP = ONE + "a_row_that_met_the_last_word_is_filled_up_with_it"
LEFT = ONE + "it_evaluates_without_gradients_and_leaves_the_model_as_it_was"
REFUSED = ONE + "what_cannot_be_made_is_refused"
THEIRS = ONE + "a_checkpoint_goes_on_as_transformers_goes_on_with_it"

WORDS = CUT + "a_cut_model_takes_the_words_of_the_whole_one"
THREE = WORDS + "[3-config4-False-1]"
PADDED = CUT + "no_word_of_the_padding_is_ever_taken"
NONE = CUT + "a_rank_without_a_word_offers_none"
REPLICAS = CUT + "replicas_may_ask_for_different_texts"
BYTES, BYTES_CUT = (
    CUT + "a_text_costs_the_bytes_of_the_formula[2-config1-False-dtype1]",
    CUT + "a_text_costs_the_bytes_of_the_formula[3-config3-True-dtype3]",
)
DIFFERS = CUT + "what_differs_or_cannot_be_is_refused_on_every_rank"


def mutant(name: str, old: str, new: str, tests: str | tuple, why: str, trap=None) -> Mutant:
    tests = (tests,) if isinstance(tests, str) else tests
    return Mutant(f"generate-{name}", FILE, old, new, tests, why, trap)


def formula(name: str, old: str, new: str, tests: str | tuple, why: str) -> Mutant:
    return replace(mutant(name, old, new, tests, why), path=FORMULA)


MUTANTS = [
    mutant(
        "whole-text-again",
        "            words.append(new)\n",
        "            words.append(new)\n            new = torch.cat(words, 1)\n",
        (PLAIN, BYTES),
        "the cache is given what it has already",
    ),
    mutant(
        "no-cache",
        "logits = _last_logits(model, new, past)",
        "logits = _last_logits(model, torch.cat(words, 1), [Cache() for _ in past])",
        BYTES,
        "every word pays for the whole text",
    ),
    mutant(
        "first-word-predicts",
        "model.head(x[:, -1:])",
        "model.head(x[:, :1])",
        (PLAIN, THEIRS),
        "the word after the first token of the prompt is taken",
    ),
    mutant(
        "dropout-on",
        "    model.eval()\n    try:",
        "    try:",
        LEFT,
        "every text has other words left out",
    ),
    mutant(
        "all-to-training",
        "            module.training = mode\n",
        "            module.training = True\n",
        LEFT,
        "what was frozen in eval mode comes back in training",
    ),
    mutant("with-history", "@torch.no_grad()\n", "", LEFT, "the whole text is kept for a backward"),
    mutant(
        "hotter-is-colder",
        "values[:, : own.shape[1]] / temperature",
        "values[:, : own.shape[1]] * temperature",
        DRAWN,
        "the temperature acts the wrong way round",
    ),
    mutant(
        "temperature-of-the-top",
        "(values / temperature + noises",
        "(values + noises",
        DRAWN,
        "with top, the temperature is forgotten",
    ),
    mutant(
        "noise-too-heavy",
        "return -(-uniform.log()).log()",
        "return -uniform.log()",
        DRAWN,
        "the largest of logits and another noise is no draw from the softmax",
    ),
    mutant(
        "top-less-one",
        "min(top, vocabulary.widest), min(top, entries)",
        "min(top, vocabulary.widest), min(max(1, top - 1), entries)",
        (DRAWN, TIES),
        "one word fewer than asked for",
    ),
    mutant(
        "anybodys-numbers",
        "torch.rand(size, generator=noise, dtype",
        "torch.rand(size, dtype",
        SEED,
        "the text depends on what else was drawn, and disturbs it",
    ),
    mutant(
        "the-same-noise-each-time",
        "            logits = _last_logits(model, new, past)",
        "            noise.manual_seed(seed)\n            logits = _last_logits(model, new, past)",
        SEED,
        "every word of a row has the same noise: texts repeat themselves",
    ),
    mutant(
        "one-noise-for-all-rows",
        "torch.rand(size, generator=noise, dtype=torch.float64, device=noise.device)",
        "torch.rand((1, entries), generator=noise, dtype=torch.float64).repeat(size[0], 1)",
        SEED,
        "equal prompts give equal texts",
    ),
    mutant(
        "noise-by-place",
        "uniform.gather(1, ids.cpu().clamp(max=entries - 1))",
        "uniform[:, : ids.shape[1]]",
        PLACE,
        "the noise is for a place among the likeliest, not for a word",
    ),
    mutant(
        "last-of-equals",
        "            values, at = values.max(1, keepdim=True)\n",
        "            width = values.shape[1]\n"
        "            values, at = values.flip(1).max(1, keepdim=True)\n"
        "            at = width - 1 - at\n",
        TIES,
        "of equally likely words another than argmax's is taken",
    ),
    mutant(
        "nan-is-a-word",
        "        if bool(values.isnan().any()):\n",
        "        if False:\n",
        (TIES, LEFT, DIFFERS),
        "a broken model goes on writing",
    ),
    mutant(
        "goes-on-after-the-end",
        "                chosen = torch.where(done, stop, chosen)\n",
        "",
        STOP,
        "a row that has ended goes on",
    ),
    mutant(
        "ends-with-the-first",
        "if stop is not None and bool(done.all()):",
        "if stop is not None and bool(done.any()):",
        STOP,
        "the first row to end ends all",
    ),
    mutant(
        "never-ends-early",
        "if stop is not None and bool(done.all()):",
        "if False:",
        STOP,
        "all rows have ended and the model goes on",
    ),
    mutant(
        "too-long",
        "    if ids.shape[1] + count > config.length:\n",
        "    if False:\n",
        (REFUSED, DIFFERS),
        "the refusal comes in the middle of the text, or never for rotary positions",
    ),
    mutant(
        "no-temperature",
        "    if not 0 <= temperature < math.inf:",
        "    if temperature < 0:",
        REFUSED,
        "NaN and infinity are temperatures",
    ),
    mutant(
        "no-top",
        "    if top is not None and top < 1:\n",
        "    if False:\n",
        REFUSED,
        "top=0 takes a word all the same",
    ),
    mutant(
        "any-word",
        "    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= config.vocabulary):\n",
        "    if False:\n",
        REFUSED,
        "an id that is no word",
    ),
    mutant(
        "own-words-alone",
        "        if self.group is not None:\n            pairs",
        "        if False:\n            pairs",
        THREE,
        "every rank writes a text of its own words",
        "T30",
    ),
    mutant(
        "numbered-from-zero",
        "torch.arange(start, stop, device=logits.device)",
        "torch.arange(stop - start, device=logits.device)",
        THREE,
        "words are numbered from each rank's first",
    ),
    mutant(
        "noise-from-zero",
        "own = uniform[:, start:stop]",
        "own = uniform[:, : stop - start]",
        THREE,
        "every rank takes the first words' noise",
    ),
    mutant(
        "a-seed-for-each-rank",
        "torch.Generator().manual_seed(seed)",
        "torch.Generator().manual_seed(seed + (0 if group is None else group.rank()))",
        THREE,
        "noise is drawn by each rank for itself: no longer the draw of one process",
    ),
    mutant(
        "padding-is-a-word",
        ".masked_fill(ids >= entries, -math.inf)",
        ".masked_fill(ids < 0, -math.inf)",
        PADDED,
        "the zeros of padded rows are likelier than any word",
    ),
    mutant(
        "offers-what-it-has",
        "        values = nn.functional.pad(values, (0, missing), value=-math.inf)\n",
        "        missing = 0\n",
        NONE,
        "a rank with fewer words sends less than the others expect",
    ),
    mutant(
        "all-ranks-agree",
        "            (settings, lists),\n            [group],\n",
        "            (settings, lists),\n            [torch.distributed.group.WORLD],\n",
        REPLICAS,
        "replicas may no longer ask for different texts",
    ),
    mutant(
        "all-words-offered",
        "offered, kept = min(top, vocabulary.widest)",
        "offered, kept = vocabulary.widest",
        BYTES,
        "the logits meet after all",
    ),
    formula(
        "formula-of-the-whole-prompt",
        "for s in [prompt] + [1] * (count - 1) if count else []:",
        "for s in [prompt + count]:",
        (BYTES, BYTES_CUT),
        "the last word is counted as if it went through the model",
    ),
    formula(
        "formula-even",
        "            own = cut(s, n)[rank]\n",
        "            own = s / n\n",
        BYTES_CUT,
        "one token is taken to be cut evenly over the ranks",
    ),
    mutant(
        "nobody-asks",
        "    if group is not None:  # first",
        "    if False:  # first",
        DIFFERS,
        "ranks with different prompts mix two texts, or wait for each other",
        "T20",
    ),
    mutant(
        "prompts-not-compared",
        "            (settings, lists),\n",
        "            settings,\n",
        DIFFERS,
        "two prompts of one shape are taken for the same",
        "T20",
    ),
    mutant(
        "any-group",
        "    if own is not None and group is not None and group.group_name != own.group_name:\n",
        "    if False:\n",
        DIFFERS,
        "another group's ranks are waited for",
    ),
    mutant(
        "group-of-a-whole-one",
        "    if own is None and group is not None and group.size() > 1:\n",
        "    if False:\n",
        DIFFERS,
        "a whole model is taken for a cut one, without a word",
    ),
]
