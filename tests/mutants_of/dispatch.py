"""Mistakes in course_lib/dispatch/: the table of collectives, the listener for waits."""

from __future__ import annotations

from tests.mutation import Mutant

WAITS, TABLE = "course_lib/dispatch/waits.py", "course_lib/dispatch/operations.py"
TESTS = "tests/test_dispatch.py::test_"
ARGUMENTS = TESTS + "an_operation_has_the_arguments_that_the_table_names"


def waits(name: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"dispatch-{name}", WAITS, old, new, (TESTS + test,), why)


def table(name: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"dispatch-{name}", TABLE, old, new, (test,), why)


MUTANTS = [
    waits(
        "heard-as-often-as-added",
        "list({id(listener): listener for listener in listeners}.values())",
        "list(listeners)",
        "listening_twice_hears_once_until_it_has_ended_twice",
        "a wait is booked twice",
    ),
    waits(
        "the-inner-end-ends-all",
        "            del method.listeners[[other is listener for",
        "            while listener in method.listeners[1:]:\n"
        "                method.listeners.remove(listener)\n"
        "            del method.listeners[[other is listener for",
        "listening_twice_hears_once_until_it_has_ended_twice",
        "the end of an inner context makes the outer one deaf",
    ),
    waits(
        "first-to-end-restores",
        "            if not method.listeners and dist.Work.wait is method.function:",
        "            if dist.Work.wait is method.function:",
        "listeners_may_end_in_any_order",
        "the others hear no more",
    ),
    waits(
        "others-method-taken-away",
        "            if not method.listeners and dist.Work.wait is method.function:",
        "            if not method.listeners:",
        "a_method_that_others_put_over_ours_stays[False]",
        "what somebody else has put over the method is lost",
    ),
    waits(
        "failed-wait-has-returned",
        "        result = original(work, *args, **kwargs)\n",
        "        try:\n            result = original(work, *args, **kwargs)\n"
        "        except RuntimeError as error:\n            result = error\n",
        "a_wait_that_raises_has_not_returned",
        "a timeout passes for a result",
    ),
    waits(
        "error-keeps-listening",
        "    try:\n        yield\n    finally:\n",
        "    yield\n    if True:\n",
        "a_wait_that_raises_has_not_returned",
        "after an error torch stays patched",
    ),
    waits(
        "waits-without-their-arguments",
        "result = original(work, *args, **kwargs)",
        "result = original(work)",
        "a_wait_is_heard_before_and_after_and_gives_what_it_gave",
        "a wait's own timeout is lost",
    ),
    table(
        "any-source-left-out",
        '    "c10d::recv_any_source_": Operation("recv", "tensors"),\n',
        "",
        TESTS + "every_operation_that_takes_a_group_is_in_the_table",
        "an operation of torch that neither ledger nor referee sees",
    ),
    table(
        "argument-of-another-name",
        'Operation("all_gather", "input_list", "output_lists", "in")',
        'Operation("all_gather", "input_tensors", "output_lists", "in")',
        f"{ARGUMENTS}[c10d::allgather_coalesced_]",
        "the ledger looks for an argument that is not there",
    ),
    table(
        "arguments-shifted",
        "name: args[i] for name, i in positions(func).items() if i < len(args)}",
        "name: args[i - 1] for name, i in positions(func).items() if i < len(args)}",
        TESTS + "arguments_go_by_their_names",
        "an input is read as an output",
    ),
]
