"""Mistakes in text from streamed weights: prompts, ranks in step, what is held, what it costs."""

from tests.support.mutation import Mutant

ZERO = "course_lib/zero/inference.py"
HOME = "course_lib/inference/"

STREAMED = "tests/course_lib/inference/test_streamed.py::test_"
WORDS = STREAMED + "every_rank_has_the_dense_words_from_its_part_of_the_weights"
SENT = STREAMED + "a_forward_sends_its_formula_whatever_the_batch"
PEAK = STREAMED + "one_unit_is_whole_at_a_time[2-gpt2-0]"
BACK = STREAMED + "a_model_is_given_back_as_it_was"
REFUSED = "tests/course_lib/inference/test_refused.py::test_"
BEGINS = REFUSED + "what_one_rank_cannot_write_no_rank_begins"
WRONG = REFUSED + "what_is_no_inference_is_refused_with_the_remedy[2]"


def mutant(
    name: str, path: str, old: str, new: str, tests: str | tuple, why: str, trap: str | None = None
) -> Mutant:
    tests = (tests,) if isinstance(tests, str) else tests
    return Mutant(f"inference-{name}", path, old, new, tests, why, trap)


MUTANTS = [
    # ---- ranks in step
    mutant(
        "other-counts",
        HOME + "text.py",
        "        count,\n        [engine.group],\n",
        "        0,\n        [engine.group],\n",
        BEGINS,
        "without synced a rank may write fewer words, and the others wait",
        "T30",
    ),
    # ---- a frozen model
    mutant(
        "small-ones-stay",
        ZERO,
        "prefetch=prefetch, persist=0, fill=fill",
        "prefetch=prefetch, fill=fill",
        (f"{WORDS}[3-gpt2-None]", PEAK),
        "every parameter below 64 KB is whole on every rank",
        "T23",
    ),
    mutant(
        "twice-on-the-host",
        ZERO,
        'HostHome(device, master=False, parameters="cpu")',
        'HostHome(device, master=True, parameters="cpu")',
        f"{WORDS}[2-llama-cpu]",
        "the host holds a copy for an optimizer that there is not",
        "T23",
    ),
]
