"""Mistakes in `make accept-gpu` with one GPU: time, what hangs, what is killed, what is found."""

from __future__ import annotations

from tests.mutation import Mutant

HERE = "tests/house/test_accept_one_gpu.py::test_"


def mutant(name: str, path: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"accept-{name}", f"tools/accept_gpu/{path}", old, new, (HERE + test,), why)


MUTANTS = [
    mutant(
        "sessions-left-behind", "running.py", "    child.wait()\n    kill(mark)\n",
        "    child.wait()\n",
        "a_stage_that_hangs_is_ended_with_its_sessions_and_the_next_goes_on",
        "ranks of a stage that hangs hold the GPU to the end",
    ),
    mutant(
        "nobody-watches", "running.py", "    sys.stdin.read()\n    kill(sys.argv[1])\n",
        "    sys.stdin.read()\n", "killed_it_leaves_whole_files_and_no_process[9]",
        "a command that is killed leaves its stage running",
    ),
    mutant(
        "part-kept-at-the-end", "report.py",
        '{name}"] = found\n            self._write()\n', '{name}"] = found\n',
        "killed_it_leaves_whole_files_and_no_process[9]",
        "a stage of many parts that is killed has found nothing",
    ),
    mutant(
        "a-limit-is-no-failure", "road.py", "and limit < stage.limit:", "and limit:",
        "a_stage_that_hangs_is_ended_with_its_sessions_and_the_next_goes_on",
        "a stage that hangs counts as one for which there was no time",
    ),
    mutant(
        "a-cut-hides-failures", "road.py", 'not result.get("failed")', "True",
        "time_is_shared_out_and_what_has_none_is_left_out",
        "tests that failed before the time was up are forgotten",
    ),
    mutant(
        "own-limit-alone", "road.py", "limit = min(stage.limit, left)", "limit = stage.limit",
        "time_is_shared_out_and_what_has_none_is_left_out", "the whole takes longer than its time",
    ),
    mutant(
        "a-cut-is-too-long", "running.py", "if ended.code is None and left < each:", "if False:",
        "a_part_that_is_cut_off_is_told_from_one_that_takes_too_long",
        "a rehearsal on a slow machine fails for want of time",
    ),
    mutant(
        "left-out-and-good", "one_gpu.py",
        """reasons += [f"{name}: left out: {words}" for words in one.get("left_out", [])]""",
        "pass",
        "the_exit_code_says_whether_all_that_ran_was_good_and_all_ran",
        "half a run counts as a whole one",
    ),
    mutant(
        "computed-on-the-cpu", "one_gpu.py", 'not device.startswith("cuda")', "not device",
        "the_exit_code_says_whether_all_that_ran_was_good_and_all_ran",
        "training on the CPU counts as one on the GPU",
    ),
    mutant(
        "other-bytes-pass", "training.py", "faults[name] = _beside_the_formulas(document)",
        "faults[name] = []",
        "training_beside_the_formulas_is_amiss_and_its_speed_is_that_of_the_end",
        "a rank sends more than the formulas say",
    ),
    mutant(
        "speed-of-the-start", "training.py", "lines[-1].tokens_per_second",
        "lines[0].tokens_per_second",
        "training_beside_the_formulas_is_amiss_and_its_speed_is_that_of_the_end",
        "the MFU is that of steps that load kernels",
    ),
    mutant(
        "one-file-costs-all", "stages.py", '"--continue-on-collection-errors", *options',
        "*options", "tests_are_recorded_as_they_end_and_a_file_that_fails_to_load_costs_no_other",
        "without Jupyter's packages not one test runs",
    ),
    mutant(
        "silence-where-it-was-to-raise", "lesson.py",
        'return [] if raised else ["was to raise, and did not"]', "return []",
        "a_lesson_goes_on_after_an_error_and_has_to_raise_where_it_says_so",
        "a cell that shows an error no more is taken for a good one",
    ),
]  # fmt: skip
