"""Mistakes in what keeps an answer from its own verdict: walls, seals, plain code."""

from tests.mutation import Mutant

ROOM = "course_lib/classroom/"
GRADING = ROOM + "grading/"
WALLS = "tests/grading/test_walls.py::"
PLAIN = "tests/grading/test_plain.py::test_what_is_more_than_plain_code_is_named"
LIMITS = "tests/grading/test_limits.py::"
REACHES = WALLS + "test_a_confined_rank_reaches_nothing_that_is_not_its_own[]"
CHECKS = "tests/test_checks_01.py::"

MUTANTS = [
    Mutant(
        "confined-ranks-are-not",
        ROOM + "rank.py",
        '        Path("/proc/self/comm").write_text(f"course-rank-{number}")\n'
        "    confine.from_environment()\n",
        '        Path("/proc/self/comm").write_text(f"course-rank-{number}")\n',
        (REACHES,),
        "an answer reads the solutions, its neighbours' work and its judge's descriptors",
    ),
    Mutant(
        "confined-started-ranks-are-not",
        ROOM + "rank.py",
        "    confine.from_environment()\n    threading",
        "    threading",
        (REACHES.replace("[]", "[spawn]"),),
        "where ranks are not forked, an answer is confined by nothing",
    ),
    Mutant(
        "confined-but-for-signals",
        ROOM + "confine.py",
        "    scopes = _SCOPES if release >= 6 else 0\n",
        "    scopes = 0\n",
        (REACHES,),
        "an answer ends its judge",
    ),
    Mutant(
        "confined-with-capabilities",
        ROOM + "confine.py",
        "        os.close(rules)\n    without_capabilities()\n",
        "        os.close(rules)\n",
        (REACHES,),
        "an answer that root grades keeps root's means",
    ),
    Mutant(
        "confined-to-all-of-etc",
        ROOM + "confine.py",
        '    read = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC)',
        '    read = [*_SYSTEM, "/etc"',
        (REACHES,),
        "an answer reads the passwords of the machine",
    ),
    Mutant(
        "confined-beside-a-thread",
        ROOM + "confine.py",
        '    if len(os.listdir("/proc/self/task")) > 1:\n',
        "    if False:\n",
        (WALLS + "test_a_thread_that_would_stay_outside_is_refused",),
        "the thread that was there before goes wherever it likes",
    ),
    Mutant(
        "walls-no-loopback",
        GRADING + "walls.py",
        "        if not flags & _UP:\n",
        "        if False:\n",
        (WALLS + "test_a_network_of_its_own_has_a_loopback_and_nothing_else",),
        "no rank of a submission meets another",
    ),
    Mutant(
        "sealed-with-anything",
        GRADING + "sealed.py",
        "        if not hmac.compare_digest(mark, self._mark(text)):\n            return None\n",
        "",
        (LIMITS + "test_what_others_write_among_the_verdicts_is_refused_and_told",),
        "a thread of the answer that has found the pipe writes its verdict",
    ),
    Mutant(
        "sealed-and-not-counted",
        GRADING + "sealed.py",
        "        number = str(self._next).encode()\n",
        '        number = b"0"\n',
        (LIMITS + "test_a_verdict_counts_once",),
        "a line that was read once counts again",
    ),
    Mutant(
        "plain-patches",
        GRADING + "plain.py",
        "            if not isinstance(node.ctx, ast.Load) and root in imported | taken:\n",
        "            if False:\n",
        (PLAIN + "[a patch of torch]", PLAIN + "[a patch of a class]"),
        "an answer replaces torch.equal, and is equal to everything",
    ),
    Mutant(
        "plain-modules-as-values",
        GRADING + "plain.py",
        "            if node.id in imported and node not in followed:\n",
        "            if False:\n",
        (PLAIN + "[a patch by another name]", PLAIN + "[a method on a module]"),
        "d = dist, and d.all_reduce is another one",
    ),
    Mutant(
        "plain-through-torch",
        GRADING + "plain.py",
        '    if name.lstrip("_") in _PYTHONS:\n        return False\n',
        "",
        (PLAIN + "[torch's own sys]",),
        "torch.sys.modules leads to everything",
    ),
    Mutant(
        "plain-texts-for-attributes",
        GRADING + "plain.py",
        '                yield "attribute", node.args[1].value if len(node.args) > 1 else ""\n',
        "                pass\n",
        (PLAIN + "[an attribute by a plain text]",),
        'getattr(torch, "sys") says as much as torch.sys',
    ),
    Mutant(
        "plain-brought-modules-unread",
        GRADING + "plain.py",
        '                waiting.extend(brought[name.split(".")[0]])\n',
        "                pass\n",
        ("tests/grading/test_plain.py::test_modules_that_were_brought_are_read_where_they_are_imported",),
        "the attack is in a file beside the notebook",
    ),
    Mutant(
        "plain-suspects-honest-answers",
        GRADING + "plain.py",
        '    "chunk",\n',
        "",
        ("tests/grading/test_plain.py::test_no_reference_answer_is_suspected",),
        "who calls x.chunk waits for a person",
    ),
    Mutant(
        "plain-compiled-modules-travel",
        GRADING + "marking.py",
        '_NOT_COPIED = {".ipynb", ".pyc", ".pyo", ".so", ".pyd", ".pth"}',
        '_NOT_COPIED = {".ipynb"}',
        (LIMITS + "test_the_files_beside_a_notebook_are_copies_that_cannot_be_written",),
        "mine.py is read, and mine.so runs",
    ),
    Mutant(
        "confined-numbers-are-not",
        GRADING + "worked_out.py",
        "    confine.from_environment()\n",
        "",
        (
            "tests/grading/test_worked_out.py::"
            "test_what_leads_to_a_number_is_confined_where_grading_is",
        ),
        "what leads to a number reads a neighbour's numbers",
    ),
    Mutant(
        "untouched-replaced-parts",
        ROOM + "checks/judge.py",
        "        self._refuse_replaced(members, when)\n",
        "",
        ("tests/grading/test_untouched.py::test_a_part_that_an_answer_replaced_is_named",),
        "an answer replaces what it is measured with, and is right",
    ),
]  # fmt: skip
