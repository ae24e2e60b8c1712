"""Mistakes in how "auto" is resolved: another value than the Trainer's, or none at all."""

from tests.mutation import Mutant

AUTO = "course_lib/deepspeed_config/auto.py"
TESTS = "tests/deepspeed_config/test_auto.py::test_"
ORIGINS = f"{TESTS}each_value_says_where_it_comes_from"
NOBODY = f"{TESTS}nobody_resolves_without_the_trainer"
STAYS = f"{TESTS}what_stays_says_why"
BOTH = f"{TESTS}conflicts_name_both_sides"
MODELS = f"{TESTS}the_hidden_size_is_the_trainers"

MUTANTS = [
    Mutant(
        "auto-resolved-by-nobody",
        AUTO,
        "    if arguments is not None:\n        _process",
        "    arguments = arguments or {}\n    if arguments is not None:\n        _process",
        (NOBODY,),
        "without the Trainer DeepSpeed reads the text",
    ),
    Mutant(
        "auto-callers-own-changed",
        AUTO,
        "    work = _Work(copy.deepcopy(dict(config)))",
        "    work = _Work(dict(config))",
        (NOBODY,),
        "the caller's config is resolved too",
    ),
    Mutant(
        "auto-batch-of-one-rank",
        AUTO,
        '        "train_batch_size", world * micro * accumulate,',
        '        "train_batch_size", micro * accumulate,',
        (ORIGINS, BOTH),
        "the batch is that of all ranks",
    ),
    Mutant(
        "auto-prefetch-whole",
        AUTO,
        "lambda h: int(0.9 * h * h)",
        "lambda h: h * h",
        (ORIGINS,),
        "nine tenths",
    ),
    Mutant(
        "auto-warmup-of-none",
        AUTO,
        "        work.fill(WARMUP, max(1, steps), text",
        "        work.fill(WARMUP, steps, text",
        (f"{TESTS}no_warmup_is_one_step",),
        "DeepSpeed refuses a warm-up of no step",
    ),
    Mutant(
        "auto-fraction-of-steps",
        AUTO,
        "math.ceil(max(total, 0) * warmup)",
        "int(warmup)",
        (ORIGINS,),
        "below 1 the warm-up is a fraction of all steps",
    ),
    Mutant(
        "auto-stage-3-everywhere",
        AUTO,
        '            if work.get(f"{ZERO}.stage") == 3 or path == REDUCE:',
        "            if True:",
        (f"{TESTS}below_stage_3_one_size_alone_is_resolved",),
        "two of the sizes are resolved at stage 3 alone",
    ),
    Mutant(
        "auto-default-untold",
        AUTO,
        '        typed = "" if given.intersection(names) else',
        '        typed = "" if True else',
        (ORIGINS,),
        "a default looks as if somebody had chosen it",
    ),
    Mutant(
        "auto-fills-only",
        AUTO,
        "        elif name is not None and here is not None and here != value:",
        "        elif False:",
        (BOTH,),
        "a contradiction that ends the Trainer is not told",
    ),
    Mutant(
        "auto-steps-guessed",
        AUTO,
        "    known = total > 0\n",
        "    known = True\n",
        (STAYS,),
        "the number of steps follows from the data",
    ),
    Mutant(
        "auto-one-name-for-all",
        AUTO,
        'table()["hidden_size"].get(kind, ("hidden_size", None))',
        '("hidden_size", None)',
        (MODELS,),
        "GPT-2 calls it n_embd, T5 d_model",
    ),
    Mutant(
        "auto-text-forgotten",
        AUTO,
        "    if isinstance(text, Mapping):\n",
        "    if False:\n",
        (MODELS,),
        "a model of parts has the size of its text",
    ),
    Mutant(
        "auto-smallest-of-several",
        AUTO,
        '        value = max(model["hidden_sizes"])',
        '        value = min(model["hidden_sizes"])',
        (MODELS,),
        "of several the largest counts",
    ),
    Mutant(
        "auto-text-for-a-number",
        AUTO,
        "        if not good:\n            raise ValueError(f",
        "        if False:\n            raise ValueError(f",
        (f"{TESTS}arguments_that_are_none_are_refused",),
        "a learning rate that is text becomes a value",
    ),
    Mutant(
        "auto-accumulation-of-the-arguments",
        AUTO,
        '        work.put("gradient_accumulation_steps", 1, text)',
        '        work.put("gradient_accumulation_steps", 4, text)',
        (f"{TESTS}odd_files_are_left_to_the_checker",),
        "Accelerate writes 1 where the file says nothing",
    ),
]
