"""Mistakes in the house itself: its bootstrap, and its care of notebooks."""

from tests.mutation import Mutant

BOOT = "tools/bootstrap/"
PIP = "tests/house/test_bootstrap_pip.py::"
WHOLE = "tests/house/test_bootstrap_whole.py::"
REFUSALS = "tests/house/test_bootstrap_refusals.py::"
TARGETS = "tests/house/test_make_targets.py::"
BOOKS = "tests/house/test_notebooks_care.py::"

MUTANTS = [
    Mutant(
        "house-local-torch-needs-an-index",
        BOOT + "torch_build.py",
        'pip.try_install("--no-index", "--no-deps", wanted)',
        'pip.try_install("--no-deps", wanted)',
        (PIP + "test_a_local_wheel_is_taken_and_no_index_asked[False]",),
        "gigabytes are fetched although a wheel lies at hand",
    ),
    Mutant(
        "house-cpu-build-without-its-tag",
        BOOT + "torch_build.py",
        "wanted + tag",
        "wanted",
        (PIP + "test_without_a_driver_the_cpu_build_by_its_own_name",),
        "a second index slips the CUDA build in under the same release",
    ),
    Mutant(
        "house-disk-asked-afterwards",
        BOOT + "torch_build.py",
        "        need_room(pip.python.parent, GPU_INSTALLED, downloads=GPU_DOWNLOAD)\n",
        "",
        (PIP + "test_with_a_driver_the_size_is_said_and_the_disk_asked_first",),
        "three gigabytes are downloaded before the disk is found too small",
    ),
    Mutant(
        "house-exit-code-of-the-last-check",
        BOOT + "tasks.py",
        "    return 1 if failed else 0",
        "    return 1 if outcomes[-1].code else 0",
        (TARGETS + "test_one_failure_fails_the_whole_and_stops_nothing[2]",),
        "pytest fails, the notebooks pass, and CI is green",
    ),
    Mutant(
        "house-no-tests-is-green",
        BOOT + "tasks.py",
        "failed = [one.name for one in outcomes if one.code]",
        "failed = [one.name for one in outcomes if one.code not in (None, 0, 5)]",
        (TARGETS + "test_no_test_found_is_a_failure",),
        "a wrong folder in the configuration turns every test off, and CI is green",
    ),
    Mutant(
        "house-moved-environment-kept",
        BOOT + "condition.py",
        'if stamp.get("home") != str(venv.resolve()):',
        "if False:",
        (WHOLE + "test_a_moved_clone_gets_a_new_environment",),
        "the scripts of a moved environment run the Python of the old place, or none",
    ),
    Mutant(
        "house-pins-not-followed",
        BOOT + "condition.py",
        'if stamp.get("pins") != pins:',
        "if False:",
        (WHOLE + "test_stale_pins_are_noticed_and_followed",),
        "after an update the old packages stay",
    ),
    Mutant(
        "house-interrupted-taken-for-failed",
        BOOT + "condition.py",
        'if unfinished.get("ended") and contents(venv) is not None:',
        "if contents(venv) is not None:",
        (WHOLE + "test_an_interrupted_installation_is_noticed_and_leaves_no_pip[9]",),
        "a package torn by a kill looks installed to pip, and stays torn",
    ),
    Mutant(
        "house-torn-packages-built-upon",
        BOOT + "environment.py",
        "if not refusal.halfway:",
        "if True:",
        (WHOLE + "test_a_failure_while_packages_are_written_is_not_built_upon",),
        "a package that was half-written when the disk ran full stays so",
    ),
    Mutant(
        "house-shared-environment-not-looked-over",
        BOOT + "shared.py",
        'told["missing"].append(str(requirement))',
        "pass",
        (REFUSALS + "test_a_shared_environment_is_used_and_not_changed",),
        "a shared environment without the packages fails later, without a remedy",
    ),
    Mutant(
        "house-network-named-first",
        BOOT + "pip_words.py",
        "    for pattern, cause, remedy in _FAILURES:",
        "    for pattern, cause, remedy in reversed(_FAILURES):",
        (PIP + "test_a_full_disk_is_named_before_its_consequences",),
        "the reader looks after a network that has long come back",
    ),
    Mutant(
        "house-widget-state-kept",
        "course_lib/classroom/notebooks.py",
        'for mime in [m for m in output.data if "widget" in m]:',
        "for mime in []:",
        (BOOKS + "test_normalise_keeps_what_matters",),
        "the committed lesson shows a widget that no reader on the web can see",
    ),
    Mutant(
        "house-streams-as-they-were-cut",
        "course_lib/classroom/notebooks.py",
        "                kept[-1].text += output.text\n                continue\n",
        "                pass\n",
        (BOOKS + "test_normalise_keeps_what_matters",),
        "where a stream was cut is chance, and shows as a change",
    ),
]
