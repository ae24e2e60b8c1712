"""Mistakes with more words than there were: other rows on other layouts, files that run."""

from tests.mutation import Mutant

RESIZE, FILE = "course_lib/tensor_parallel/resize.py", "course_lib/data/tokenizer_file.py"
R, F = "tests/tensor_parallel/test_resize.py::test_", "tests/test_tokenizer_file.py::test_"
LAYOUTS = (f"{R}every_layout_has_the_rows_of_one_process[3]",)
FEWER = (f"{R}fewer_words_are_refused_while_ids_name_them",)

MUTANTS = [
    Mutant(
        "tokenizers-rows-of-the-old-cut",
        RESIZE,
        "start, stop = span(padded, *size_and_rank(group)) if is_cut else (0, padded)",
        "start, stop = (table.start, table.stop) if is_cut else (0, padded)",
        LAYOUTS,
        "the cut moves with the vocabulary",
    ),
    Mutant(
        "tokenizers-mean-of-own-rows",
        RESIZE,
        "wide.mean(0) + NEAR",
        "weight.detach().double().mean(0) + NEAR",
        LAYOUTS,
        "new rows depend on how many ranks there are",
    ),
    Mutant(
        "tokenizers-untied",
        RESIZE,
        "    if tied:\n        head.weight = rows\n    else:\n    ",
        "    if True:\n    ",
        LAYOUTS,
        "a tied table becomes two",
    ),
    Mutant(
        "tokenizers-padding-in-the-mean",
        RESIZE,
        "    whole = whole[:old]\n",
        "",
        (f"{R}every_layout_has_the_rows_of_one_process[4]",),
        "rows of zeros that are no words stay between the words",
    ),
    Mutant(
        "tokenizers-table-keeps-its-number",
        RESIZE,
        "table.vocabulary, table.padded, table.start, table.stop = vocabulary, padded, start, stop",
        "table.padded, table.start, table.stop = padded, start, stop",
        LAYOUTS,
        "the loss and the check of ids take new words for padding",
    ),
    Mutant(
        "tokenizers-config-of-before",
        RESIZE,
        "    model.config = model.config.changed(vocabulary=vocabulary)\n",
        "",
        LAYOUTS,
        "a checkpoint of the model does not fit its own config",
    ),
    Mutant(
        "tokenizers-shrinks-below-use",
        RESIZE,
        "(used is None or used > vocabulary)",
        "used is None",
        FEWER,
        "ids without a row",
    ),
    Mutant(
        "tokenizers-one-seed-for-both",
        RESIZE,
        "    if n > 1:\n        mine",
        "    if n > 9:\n        mine",
        (f"{R}ranks_that_do_not_agree_hear_it",),
        "ranks with other tokenizers cut other tables",
    ),
    Mutant(
        "tokenizers-pickle-is-no-json",
        FILE,
        'if raw[:1] == b"\\x80" or raw[:2] == b"PK":',
        "if False:",
        (f"{F}what_is_no_tokenizer_is_refused_by_its_kind",),
        "a pickle is said to be a broken text",
    ),
    Mutant(
        "tokenizers-any-json",
        FILE,
        'if not isinstance(found, dict) or not isinstance(found.get("model"), dict):',
        "if not isinstance(found, dict):",
        (f"{F}what_is_no_tokenizer_is_refused_by_its_kind",),
        "a list of words is handed to the library, which says nothing of use",
    ),
]
