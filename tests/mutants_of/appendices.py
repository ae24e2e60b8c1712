"""Mistakes with notebooks that have a letter for a number, and with what they show."""

from tests.mutation import Mutant

SPACE = "course_lib/classroom/workspace/"
A = "tests/classroom/test_appendices.py::"
T = "tests/test_appendices.py::"
N = "tests/nodes/test_two_hosts.py::"
BROWSER = "tests/browser/test_in_the_browser.py::"
SHEET = "notebooks/appendix_d_formula_sheet.ipynb"


def _mutant(name: str, path: str, old: str, new: str, *tests: str, why: str) -> Mutant:
    return Mutant(f"appendices-{name}", path, old, new, tests, why)


MUTANTS = [
    _mutant(
        "profilers-log-shown",
        "course_lib/classroom/output.py",
        "(USDT|INFO|STAGE)",
        "(INFO|STAGE)",
        "tests/classroom/test_magic.py::"
        "test_what_torch_logs_beside_a_profile_is_not_a_ranks_own_output",
        why="a profiled cell shows times and process numbers, other ones in each run",
    ),
    _mutant(
        "not-handed-out",
        SPACE + "handed_out.py",
        '        *sorted(root.glob("notebooks/appendix_[a-z]*_*.ipynb")),\n',
        "",
        A + "test_appendices_are_copied_after_the_lessons_and_said",
        A + "test_this_courses_own_appendices_are_handed_out_with_titles_of_their_own",
        why="a learner's folder has no appendix, and links lead nowhere",
    ),
    _mutant(
        "parts-not-reset-together",
        SPACE + "renewing.py",
        "if number in (item.lesson, item.letter)",
        "if number == item.lesson",
        A + "test_the_parts_of_an_appendix_are_copied_and_named_apart_and_reset_together",
        why="`course reset E` knows no appendix in parts",
    ),
    _mutant(
        "called-by-two-letters",
        SPACE + "handed_out.py",
        'return name.split("_")[1].upper() if self.is_appendix else name[:2]',
        "return name[:2]",
        A + "test_one_that_is_new_or_has_changed_is_called_by_its_letter",
        A + "test_status_shows_appendices_after_the_lessons",
        why="all appendices are the lesson `ap`, and status shows the last alone",
    ),
    _mutant(
        "called-lessons",
        SPACE + "handed_out.py",
        'return f"lesson {lesson}" if lesson.isdigit() else f"appendix {lesson}"',
        'return f"lesson {lesson}"',
        A + "test_one_that_is_new_or_has_changed_is_called_by_its_letter",
        A + "test_status_shows_appendices_after_the_lessons",
        why="there is no lesson C",
    ),
    _mutant(
        "counted-as-lessons",
        SPACE + "copying.py",
        "appendices = sum(item.is_appendix for item in found)",
        "appendices = 0",
        A + "test_appendices_are_copied_after_the_lessons_and_said",
        why="a newcomer counts 18 lessons and finds 15",
    ),
    _mutant(
        "small-letter",
        SPACE + "handed_out.py",
        "return text[:1].upper() + text[1:]",
        "return text.capitalize()",
        A + "test_one_that_is_new_or_has_changed_is_called_by_its_letter",
        why="appendix C becomes Appendix c",
    ),
    _mutant(
        "no-reset-by-letter",
        SPACE + "renewing.py",
        "else what.upper()  # of an appendix its letter",
        'else ""',
        A + "test_reset_knows_an_appendix_by_its_letter_its_name_and_its_path[C]",
        A + "test_reset_knows_an_appendix_by_its_letter_its_name_and_its_path[c]",
        why="`course reset C` says that there is none",
    ),
    _mutant(
        "letter-in-the-title",
        SPACE + "handed_out.py",
        '.removeprefix("Appendix ")',
        "",
        A + "test_status_shows_appendices_after_the_lessons",
        A + "test_this_courses_own_appendices_are_handed_out_with_titles_of_their_own",
        why="status says Appendix B twice",
    ),
    _mutant(
        "nought-of-nought",
        SPACE + "show.py",
        'if lesson["of"] else "opened"',
        'if lesson["of"] is not None else "opened"',
        A + "test_the_table_of_a_room_says_of_an_appendix_whether_it_was_opened",
        why="0/0 points, where there is nothing to earn",
    ),
    _mutant(
        "link-to-no-cell",
        SHEET,
        'ipynb#cell-id=b2629ae7bb)|\\n",\n    "|Z1|',
        'ipynb#cell-id=0000000000)|\\n",\n    "|Z1|',
        T + "test_a_link_to_another_notebook_leads_to_a_cell_of_it[appendix_d_formula_sheet]",
        T + "test_each_line_of_the_sheet_is_linked_to_a_cell_that_asserts_something[Z0]",
        why="the proof's cell was changed, and the link leads to a notebook's top",
    ),
    _mutant(
        "link-to-a-notebooks-top",
        SHEET,
        "|T2|the MLP, columns then rows: 4Φ|[04](04_the_megatron_mlp.ipynb#cell-id=4637bb174c)|",
        "|T2|the MLP, columns then rows: 4Φ|[04](04_the_megatron_mlp.ipynb#cell-id=0000000000)|",
        T + "test_a_link_to_another_notebook_leads_to_a_cell_of_it[appendix_d_formula_sheet]",
        BROWSER + "test_a_line_of_the_formula_sheet_leads_to_the_cell_that_proves_it",
        why="a reader looks for the proof in forty cells",
    ),
    _mutant(
        "proof-is-a-picture",
        SHEET,
        "|T2|the MLP, columns then rows: 4Φ|[04](04_the_megatron_mlp.ipynb#cell-id=4637bb174c)|",
        "|T2|the MLP, columns then rows: 4Φ|[04](04_the_megatron_mlp.ipynb#cell-id=da901593bb)|",
        T + "test_each_line_of_the_sheet_is_linked_to_a_cell_that_asserts_something[T2]",
        why="a cell that draws proves nothing",
    ),
    _mutant(
        "line-not-evaluated",
        SHEET,
        '"T9             ',
        '"U9             ',
        T + "test_each_line_of_the_sheet_is_evaluated_below_its_table",
        why="a formula stands in the table alone",
    ),
    _mutant(
        "a-kind-of-line-left-out",
        SHEET,
        "|L5|a pipeline's bubble: (p−1)/(m + p−1) of all slots; (p−1)/m of the work|",
        "|a pipeline's bubble: (p−1)/(m + p−1) of all slots; (p−1)/m of the work|",
        T + "test_the_sheet_has_the_formulas_that_it_is_for",
        why="who looks for the bubble finds a line without proof",
    ),
    _mutant(
        "minutes-in-the-readme",
        "notebooks/appendix_c_clusters.ipynb",
        "25 minutes to read.",
        "45 minutes to read.",
        T + "test_the_readme_lists_an_appendix_with_its_title_and_minutes[appendix_c_clusters]",
        why="the table tells other minutes than the notebook",
    ),
    _mutant(
        "one-host-called-two",
        "course_lib/nodes/on_hosts.py",
        "zip((self.a, self.b), firsts, strict=True)",
        "zip((self.a, self.a), firsts, strict=True)",
        N + "test_over_two_hosts_it_is_the_run_of_one_bit_for_bit_and_a_clock_that_is_off_is_told",
        why="both ranks run on host-a, and every claim about two hosts is about one",
    ),
]
