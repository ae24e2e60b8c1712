"""Mistakes in what course_lib/train is made of: its arithmetic, its curve."""

import os.path

from tests.mutation import Mutant

HOME = "course_lib/train/"
TESTS = "tests/train/"
FLOPS = TESTS + "test_flops.py::test_the_formula_is_what_torch_counts"
PEAK = TESTS + "test_flops.py::test_the_peak_is_a_time_of_this_machine"
CURVE = TESTS + "test_curve.py::"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"train-{name}", os.path.normpath(f"{HOME}{file}.py"), old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "flops", "recomputed-counted",
        "    return 3 * forward_flops(config, rows, length)",
        "    return (4 if config.recompute else 3) * forward_flops(config, rows, length)",
        (f"{FLOPS}[recomputed]",),
        "what is computed twice makes the utilization look better",
    ),
    mutant(
        "flops", "best-is-slowest",
        "best = min(best, timed(a, b))",
        "best = timed(a, b) and time.perf_counter()",
        (PEAK,),
        "the peak is a time of the clock and not of a product",
    ),
    mutant(
        "flops", "one-product-between-waits",
        "    for _ in range(TOGETHER):\n        a @ b\n",
        "    a @ b\n",
        (TESTS + "test_flops.py::test_on_a_gpu_ten_products_stand_between_two_looks",),
        "the peak of a GPU counts launches and waits, and MFU is too high",
    ),
    mutant(
        "report", "first-step-counted",
        "counted = self.stretches[1:] or self.stretches",
        "counted = self.stretches",
        (TESTS + "test_shown.py::test_the_first_step_is_left_out_where_others_follow",),
        "a short run on a GPU shows a third of its MFU, as its first step loads libraries",
    ),
    mutant(
        "curve", "rounded",
        "repr(value)",
        'f"{value:.6g}"',
        (f"{CURVE}test_what_is_read_is_what_was_written",),
        "two runs that differ look alike",
    ),
    mutant(
        "curve", "later",
        "        self._file.write(_line(point))\n        self._file.flush()\n",
        "        self._file.write(_line(point))\n",
        (f"{CURVE}test_what_is_read_is_what_was_written",),
        "the last steps before a kill are lost",
    ),
    mutant(
        "curve", "torn-line-read",
        'raw[: raw.rfind(b"\\n") + 1].decode',
        'raw.removesuffix(b"\\n").__add__(b"\\n").decode',
        (f"{CURVE}test_a_line_cut_off_in_the_middle_is_left_out",),
        "half of a number is a number",
    ),
    mutant(
        "curve", "all-kept",
        "if point.step <= after]",
        "if point.step]",
        (f"{CURVE}test_going_on_takes_off_what_came_after",),
        "steps that are taken again stand there twice",
    ),
    mutant(
        "curve", "any-file",
        "    if lines and head != ",
        "    if not lines and head != ",
        (f"{CURVE}test_another_file_is_refused",),
        "somebody's table is taken for a curve and written over",
    ),
    Mutant(
        "figures-loss-curve-of-nothing",
        "course_lib/figures/loss_curve.py",
        "    if not runs or not all(runs.values()):\n",
        "    if runs is None:\n",
        (f"{CURVE}test_the_figure_says_where_each_run_begins_and_ends",),
        "a picture without a line",
    ),
]  # fmt: skip
