"""Mistakes in course_lib/classroom/values.py, and in what hands values on."""

from tests.mutation import Mutant

VALUES = "course_lib/classroom/values.py"
CREW = "course_lib/classroom/crew.py"
TESTS = "tests/classroom/test_values.py::"
CLUSTER = "tests/classroom/test_cluster.py::"

MUTANTS = [
    Mutant(
        "values-a-pickle-is-read",
        VALUES,
        "        return _value(json.loads(kinds), load(tensors) if tensors else {})",
        "        return __import__('pickle').loads(kinds)",
        (f"{TESTS}test_a_text_that_nobody_packed_is_refused_and_runs_nothing",),
        "a program that a rank sends runs in the notebook's process",
    ),
    Mutant(
        "values-of-a-rank-run",
        CREW,
        '        return values.unpack(reply["data"]["text/plain"].strip("\'"))',
        '        text = reply["data"]["text/plain"].strip("\'")\n'
        "        return __import__('pickle').loads(__import__('base64').b64decode(text))",
        (f"{CLUSTER}test_a_rank_that_sends_something_else_sends_no_program",),
        "what a rank sends back is unpickled, and runs, in the notebook's process",
    ),
    Mutant(
        "values-refusal-by-pythons-name",
        CREW,
        'cause = "" if reply["ename"] == "CannotTravel" else ',
        "cause = ",
        (f"{CLUSTER}test_what_cannot_travel_is_refused_by_its_name_and_costs_nothing",),
        "a learner reads the name of an exception that no page explains",
    ),
    Mutant(
        "values-tuples-become-lists",
        VALUES,
        "            return [next(k for k in _SEQUENCES if isinstance(value, k)).__name__, *items]",
        '            return ["list", *items]',
        (f"{TESTS}test_data_arrives_as_what_it_was",),
        "a shape comes back as a list, and is no key of a dictionary any more",
    ),
    Mutant(
        "values-subclasses-refused",
        VALUES,
        "        if isinstance(value, dict):\n            return",
        "        if type(value) is dict:\n            return",
        (f"{TESTS}test_a_subclass_arrives_as_the_plain_class",),
        "a Counter, which is a dictionary, cannot be pulled",
    ),
    Mutant(
        "values-numbers-of-numpy-refused",
        VALUES,
        "            value = value.item()",
        "            pass",
        (f"{TESTS}test_a_scalar_of_numpy_arrives_as_a_number",),
        "a mean that numpy has made cannot be pulled",
    ),
    Mutant(
        "values-bytes-in-the-other-order",
        VALUES,
        'value.astype(value.dtype.newbyteorder("="), order="C")',
        'value.copy("C").view(value.dtype.newbyteorder("="))',
        (f"{TESTS}test_an_array_of_numpy_arrives_as_one",),
        "258 arrives as 33619968",
    ),
    Mutant(
        "values-a-dtype-without-a-name",
        VALUES,
        '        if str(plain.dtype).removeprefix("torch.") not in _DTYPES:',
        "        if False:",
        (f"{TESTS}test_what_is_no_data_is_refused_by_its_name",),
        "a tensor is sent that cannot be read, and nobody says which",
    ),
    Mutant(
        "values-torch-loaded-at-once",
        VALUES,
        "import sys\nfrom collections import namedtuple",
        "import sys\nimport torch\nfrom collections import namedtuple",
        (f"{TESTS}test_without_a_tensor_neither_torch_nor_numpy_is_loaded",),
        "the notebook's own process loads torch to hear a number",
    ),
    Mutant(
        "values-a-view-brings-its-storage",
        VALUES,
        "plain.clone(memory_format=torch.contiguous_format)",
        "plain.contiguous()",
        (f"{TESTS}test_tensors_that_share_memory_travel_as_copies_that_can_be_written",),
        "two views of one tensor cannot travel together",
    ),
    Mutant(
        "values-any-name-of-torch",
        VALUES,
        "        if not isinstance(found, torch.dtype):",
        "        if False:",
        (f"{TESTS}test_a_text_that_nobody_packed_is_refused_and_runs_nothing",),
        "a made-up dtype hands the notebook a function of torch",
    ),
    Mutant(
        "values-long-numbers-in-digits",
        VALUES,
        'return number if abs(number) < _MOST else ["int", hex(number)]',
        "return number",
        (f"{TESTS}test_a_number_of_more_digits_than_python_reads_arrives",),
        "a number is sent in more digits than Python reads back",
    ),
    Mutant(
        "values-conjugated-by-a-flag",
        VALUES,
        ".as_subclass(torch.Tensor).resolve_conj()",
        ".as_subclass(torch.Tensor)",
        (f"{TESTS}test_a_tensor_arrives_bit_for_bit",),
        "a conjugated tensor has a flag for its sign, and no view as real numbers",
    ),
    Mutant(
        "values-names-lost",
        VALUES,
        '            if names := _names(getattr(value, "_fields", ())):',
        "            if names := []:",
        (f"{TESTS}test_fields_keep_their_names_and_bring_no_class_along",),
        "a figure asks a ledger's span for its op, and has a plain tuple",
    ),
    Mutant(
        "values-a-rank-inherits",
        "course_lib/prepared/processes.py",
        "        start_new_session=True,\n",
        "        start_new_session=True,\n        close_fds=False,\n",
        (
            "tests/classroom/test_judge.py::"
            "test_a_rank_holds_no_descriptor_of_the_process_that_judges[spawn]",
        ),
        "an answer finds the pipe open by which its own verdict goes out",
    ),
]
