"""Mistakes in what all commands share: terminals, Ctrl-C, narrow tables, no clone; keys ignored."""

from tests.mutation import Mutant

HERE, TESTS = "course_lib/cli/", "tests/cli/test_"
IGNORED = "tests/deepspeed_config/test_ignored.py::test_"
UNKNOWN = "course_lib/deepspeed_config/rules/unknown.py"
MUTANTS = [
    Mutant(
        "commands-utf-8-alone",
        f"{HERE}base.py",
        "            readable(stream)\n",
        "            pass\n",
        (f"{TESTS}terminal.py::test_a_command_prints_as_it_does_in_utf_8[estimate]",),
        "a terminal in ISO-8859-1 gets a traceback, and exit code 1",
    ),
    Mutant(
        "commands-import-uncaught",
        f"{HERE}__init__.py",
        "    except KeyboardInterrupt:\n",
        "    except EOFError:\n",
        (f"{TESTS}interrupted.py::test_while_it_is_imported[typer]",),
        "Ctrl-C in the first half second is Python's own traceback",
    ),
    Mutant(
        "commands-table-cut",
        f"{HERE}tables.py",
        "    if Measurement.get(console, wide, table).minimum <= console.width:\n",
        "    if True:\n",
        (f"{TESTS}narrow.py::test_no_number_and_no_name_is_cut[estimate]",),
        "13… stands for 130.39 as for 13.04",
    ),
    Mutant(
        "commands-without-the-course",
        f"{HERE}base.py",
        '    if not (root / "exercises").is_dir():\n',
        "    if False:\n",
        (f"{TESTS}without_clone.py::test_a_command_without_the_course_says_what_it_needs",),
        "a command of a wheel ends in a traceback, or says nothing",
    ),
    Mutant(
        "commands-key-taken-away",
        UNKNOWN,
        '        level, verb, sure = "warning", "meant", sure and isinstance(there, dict)\n',
        '        level = "warning"\n',
        (f"{IGNORED}a_program_s_own_key_is_no_error_and_stays[num_epochs]",),
        "--fix moves a key away from the program that reads it",
    ),
    Mutant(
        "commands-any-value",
        UNKNOWN,
        '    return value == "auto" or judge(key, value).taken\n',
        "    return True\n",
        (f"{IGNORED}a_misspelt_key_of_the_same_section_is_an_error_where_its_value_suits",),
        "a key that only looks like one of DeepSpeed's ends a check",
    ),
    Mutant(
        "commands-one-stage",
        "course_lib/deepspeed_config/rules/values.py",
        '        if path == ("datastates_ckpt",) or _tuned(config, path, value):\n',
        '        if path == ("datastates_ckpt",):\n',
        (f"{IGNORED}the_autotuner_s_stages_are_no_error",),
        "the autotuner's own notation is an error",
    ),
    Mutant(
        "commands-comma-dropped",
        "course_lib/estimate/fit.py",
        "{grouped}|[\\d_]*",
        "{grouped}|[\\d_,]*",
        ("tests/estimate/test_fit.py::test_what_is_no_number_is_refused[7,5B]",),
        "7,5B parameters are 75 billion",
    ),
]
