"""Mistakes in the house itself: its bootstrap, and its care of notebooks."""

from tests.mutation import Mutant

BOOT = "tools/bootstrap/"
PIP = "tests/house/test_bootstrap_pip.py::"
WHOLE = "tests/house/test_bootstrap_whole.py::"
REFUSALS = "tests/house/test_bootstrap_refusals.py::"
TARGETS = "tests/house/test_make_targets.py::"
CLOSED = "tests/house/test_bootstrap_closed.py::"
HASHES = "tests/house/test_hashes.py::"
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
    Mutant(
        "house-closed-python-does-not-run",
        BOOT + "interpreters.py",
        "            if place is not None:\n",
        "            if False:\n",
        (
            CLOSED + "test_a_python_in_a_closed_home",
            CLOSED + "test_a_python_that_may_not_be_executed",
        ),
        "a reader looks for a fault in a Python that runs for its owner",
    ),
    Mutant(
        "house-closed-links-not-followed",
        BOOT + "closed.py",
        "        if here.is_symlink():\n",
        "        if False:\n",
        (CLOSED + "test_a_shared_environment_whose_python_lies_in_a_closed_home",),
        "the folder that closes a Python is seldom the one in which its link lies",
    ),
    Mutant(
        "house-closed-packages-look-missing",
        BOOT + "shared.py",
        "        _refuse_closed(folder)  # what may not be read looks missing\n",
        "",
        (CLOSED + "test_an_environment_that_was_well_and_is_closed_now",),
        "a package is installed again that is there and may not be read",
    ),
    Mutant(
        "house-closed-environment-is-a-read-only-folder",
        BOOT + "environment.py",
        '    if now.state == "closed" and not os.access(str(root), os.W_OK):\n',
        "    if False:\n",
        (
            CLOSED + "test_an_environment_that_was_well_and_is_closed_now",
            CLOSED + "test_an_environment_that_is_closed_as_a_whole",
        ),
        "learners are told to clone anew, where the administrator has to open a Python",
    ),
    Mutant(
        "house-file-without-leave-not-named",
        BOOT + "pip_words.py",
        'place = f": {named.group(1)}" if named else ""',
        'place = ""',
        (CLOSED + "test_a_file_that_pip_may_not_read_is_named",),
        "a reader is told that some file may not be read",
    ),
    Mutant(
        "house-hashes-not-required",
        BOOT + "hashed.py",
        'pip.install("--require-hashes", "--no-deps"',
        'pip.install("--no-deps"',
        (HASHES + "test_the_cpu_build_is_sought_where_it_is",),
        "a line without a hash is installed unverified",
    ),
    Mutant(
        "house-hashes-and-then-anything",
        BOOT + "pip_run.py",
        "    if alone:\n",
        "    if False:\n",
        (HASHES + "test_another_package_under_the_same_name_is_not_installed",),
        "what the file does not list comes unverified out of a folder that pip is configured for",
    ),
    Mutant(
        "house-hashes-of-an-older-environment",
        BOOT + "condition.py",
        'if hashes and stamp.get("hashes") != hashes:',
        "if False:",
        (HASHES + "test_an_environment_that_was_not_verified_is_made_anew",),
        "an environment that was never verified passes for one that was",
    ),
    Mutant(
        "house-hashes-of-any-version",
        "tools/hashes.py",
        "and pin.specifier.contains(version, prereleases=True)",
        "and True",
        (HASHES + "test_what_is_not_at_its_pin_is_refused_and_a_build_of_torch_is_left_open",),
        "the file of hashes moves the pins",
    ),
]
