"""Mistakes in course_lib/classroom/learners_copy.py, tracked.py and grading/intact.py."""

from tests.mutation import Mutant

COPY, TRACKED = (f"course_lib/classroom/{name}.py" for name in ("learners_copy", "tracked"))
INTACT = "course_lib/classroom/grading/intact.py"
HANDED = "tests/grading/test_learners_copy.py::"
GRADED = "tests/grading/test_intact.py::"
REFUSED = f"{GRADED}test_exercises_that_are_not_as_released_are_refused_in_words"

MUTANTS = [
    Mutant(
        "handout-solutions-travel",
        COPY,
        '    "Makefile", "tools/__init__.py"',
        '    "solutions", "Makefile", "tools/__init__.py"',
        (
            f"{HANDED}test_each_tracked_file_travels_or_stays_and_nothing_else_travels",
            f"{HANDED}test_no_file_shows_an_answer",
        ),
        "the learners' copy holds the answers",
    ),
    Mutant(
        "handout-of-what-lies-there",
        TRACKED,
        '_git(root, "ls-files", "-z")',
        '_git(root, "ls-files", "-z", "--cached", "--others")',
        (f"{HANDED}test_each_tracked_file_travels_or_stays_and_nothing_else_travels",),
        "a list of grades beside the lessons is handed out with them",
    ),
    Mutant(
        "handout-inside-another-clone",
        TRACKED,
        '    return any(not line.endswith(" missing") for line in told)',
        "    return not told",
        (f"{HANDED}test_inside_another_clone_of_the_course_it_is_refused",),
        "git looks in the folders above, and shows the answers from there",
    ),
    Mutant(
        "handout-git-of-the-environment",
        TRACKED,
        'if not name.startswith("GIT_")}',
        'if not name.startswith("GIT_WORK")}',
        (f"{HANDED}test_a_variable_of_git_s_does_not_lead_elsewhere",),
        "in a hook of git's the list would be that of another repository",
    ),
    Mutant(
        "handout-links-followed",
        COPY,
        "    if source.is_symlink():",
        "    if source.is_symlink() and not source.exists():",
        (f"{HANDED}test_a_clone_that_is_not_whole_is_refused[a link]",),
        "a link may lead to the answers, or out of the course",
    ),
    Mutant(
        "handout-left-half-made",
        COPY,
        "            shutil.rmtree(beside)",
        "            os.rmdir(beside)",
        (
            f"{HANDED}test_a_disk_that_ends_it_leaves_nothing",
            f"{HANDED}test_an_interrupt_leaves_nothing",
        ),
        "half a copy stays beside its place, in nobody's way and on everybody's disk",
    ),
    Mutant(
        "handout-exercises-not-looked-at",
        COPY,
        "        intact.intact(root)\n",
        "",
        (
            f"{HANDED}test_a_clone_that_is_not_whole_is_refused[an exercise that is gone]",
            f"{HANDED}test_a_clone_that_is_not_whole_is_refused[an exercise that was tried]",
        ),
        "an exercise in which the instructor tried an answer is handed out with it",
    ),
    Mutant(
        "handout-make-test-begins",
        "tools/bootstrap/learners_copy.py",
        "    here = target in FOR_AUTHORS and (root / MARK).exists()",
        "    here = target in FOR_AUTHORS and (root / MARK).is_dir()",
        ("tests/house/test_learners_copy.py::test_a_target_for_authors_says_what_to_run_instead",),
        "make test installs for minutes, and then finds no tests",
    ),
    Mutant(
        "intact-solutions-in-reach-not-said",
        "course_lib/cli/grade.py",
        "for name in WITH_ANSWERS if (root / name).exists()]",
        "for name in WITH_ANSWERS if (root / name).is_file()]",
        (f"{GRADED}test_solutions_are_not_read_and_it_is_said_once_that_they_can_be",),
        "an instructor has to know that a submission can read the answers",
    ),
    Mutant(
        "intact-fewer-exercises",
        INTACT,
        "        if len(cells) != 1:",
        "        if len(cells) > 1:",
        (f"{REFUSED}[gone]", f"{REFUSED}[a lesson gone]", f"{REFUSED}[no check]"),
        "an exercise that is missing from the folder costs every learner its points",
    ),
    Mutant(
        "intact-edited-points",
        INTACT,
        "        if cell.points != exercise.points:",
        "        if cell.points > exercise.points:",
        (f"{REFUSED}[fewer points, sealed]",),
        "one point is given where the check gives four",
    ),
    Mutant(
        "intact-edited-cells",
        INTACT,
        'if cell.metadata.nbgrader.get("checksum") != compute_checksum(cell)',
        "if compute_checksum(cell) == 0",
        (f"{REFUSED}[answered]", f"{REFUSED}[another question]"),
        "what was changed by hand counts as what was handed out",
    ),
]
