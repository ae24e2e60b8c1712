"""Mistakes in what is written while the training goes on, in random streams, in DTensors' boxes."""

from tests.support.mutation import Mutant

HOME = "course_lib/checkpoint/"
LATER = "tests/course_lib/checkpoint/test_background_save.py::"
STREAMS = "tests/course_lib/checkpoint/test_streams.py::"
OWN = STREAMS + "test_each_replica_goes_on_with_its_own_at_any_tp"
DTENSORS = "tests/course_lib/checkpoint/test_dtensors.py::"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"later-{name}", f"{HOME}{file}.py", old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "streams",
        "rank-0-for-all",
        "        _set(streams[dp.rank()])\n",
        "        _set(streams[0])\n",
        (OWN,),
        "each replica's stream is replaced by the first one's",
        "T32",
    ),
    Mutant(
        "later-masters-not-brought-back",
        "course_lib/zero/shards.py",
        ".copy_(part, non_blocking=True)\n            for slot in",
        "\n            for slot in",
        ("tests/course_lib/checkpoint/test_precision.py",),
        "the model computes with other weights than its masters",
        "T25",
    ),
]  # fmt: skip
