"""Mistakes in course_lib/tensor_parallel/embedding.py, and in parallelize.py's plan of a model."""

from tests.support.mutation import Mutant

TABLE = "course_lib/tensor_parallel/embedding.py"
PLAN = "course_lib/tensor_parallel/parallelize.py"
TESTS = "tests/course_lib/tensor_parallel/test_embedding.py::"
MODEL = "tests/course_lib/tensor_parallel/test_model.py::"

FOUND = TESTS + "test_every_word_is_found_and_taught_once[2]"
STARTED = TESTS + "test_the_table_starts_as_the_dense_one"
REFUSED = TESTS + "test_what_is_no_word_or_cannot_be_cut_is_refused"
CARRIED = MODEL + "test_a_cut_model_can_be_copied_saved_and_made_without_numbers[3-config1-False]"
UNTIED = MODEL + "test_a_padded_model_trains_as_the_dense_one[3-config2-False-12-True]"
TRAINED = MODEL + "test_a_padded_model_trains_as_the_dense_one[4-config5-False-1-False]"


def table(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap=None) -> Mutant:
    return Mutant(f"embedding-{name}", TABLE, old, new, tests, why, trap)


def plan(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap=None) -> Mutant:
    return Mutant(f"model-{name}", PLAN, old, new, tests, why, trap)


MUTANTS = [
    table(
        "last-row-nobodys",
        "local < self.weight.shape[0])",
        "local < self.weight.shape[0] - 1)",
        (FOUND,),
        "each rank's last word is never found",
        "T7",
    ),
    table(
        "lookup-not-summed",
        "        return self.way.embedded(self.own_rows(ids))",
        "        return self.own_rows(ids)",
        (FOUND,),
        "each rank goes on with its own words alone",
    ),
    table(
        "padding-not-zero",
        "real.new_zeros((missing, self.hidden))",
        "real.new_ones((missing, self.hidden))",
        (FOUND,),
        "rows that are no words begin with numbers",
        "T9",
    ),
    table(
        "cut-before-padding",
        "self.start, self.stop = span(self.padded, n, rank)",
        "self.start, self.stop = span(self.vocabulary, n, rank)",
        (FOUND,),
        "the padded table is cut as if it were not padded",
        "T9",
    ),
    table(
        "another-start",
        "        real = dense.weight.detach()[",
        "        real = dense.weight.detach().flip(0)[",
        (STARTED,),
        "the initial rows are not those of the dense table",
        "T15",
    ),
    table(
        "tie-copied",
        "        self.weight, self.group = weight, group\n",
        "        self.weight, self.group = nn.Parameter(weight.detach()), group\n",
        (TRAINED,),
        "the head is a second parameter on the same numbers: half of the gradient",
        "T17",
    ),
    table(
        "range-unchecked",
        "wrong = (ids < 0) | (ids >= vocabulary)",
        "wrong = ids < 0",
        (REFUSED,),
        "an id beyond the vocabulary comes back as zeros, or as a row of padding",
    ),
    table(
        "more-ranks-than-words",
        "    if vocabulary < n:\n",
        "    if vocabulary < 1:\n",
        (REFUSED,),
        "ranks without a word, without a word said",
    ),
    table(
        "cut-twice",
        "        if isinstance(dense, VocabularyParallelEmbedding):",
        "        if dense is None:",
        (REFUSED,),
        "a part of the table is cut again as if it were the whole",
    ),
    plan(
        "untied",
        "        weight = table.weight\n",
        "        weight = nn.Parameter(table.weight.detach().clone())\n",
        (TRAINED, CARRIED),
        "a tied head drifts from its table once it is cut",
        "T17",
    ),
    plan(
        "head-not-padded",
        "rows = VocabularyParallelEmbedding(rows, group, multiple_of=multiple_of)",
        "rows = VocabularyParallelEmbedding(rows, group)",
        (UNTIED,),
        "table and head are cut at different words",
        "T9",
    ),
]
