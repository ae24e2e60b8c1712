"""Mistakes in course_lib/ledger/."""
# ruff: noqa: E501

from tests.mutation import Mutant

MUTANTS = [
    Mutant(
        "ledger-all-reduce-counts-one-way",
        "course_lib/ledger/forms.py",
        "return _divide(2 * (n - 1) * payload, n)",
        "return _divide((n - 1) * payload, n)",
        (
            "tests/ledger/test_ledger_forms.py::test_all_reduce_is_a_reduce_scatter_and_an_all_gather",
            "tests/ledger/test_ledger_peers.py::test_a_step_of_ddp_all_reduces_each_gradient_once",
        ),
        "half of an all-reduce, its all-gather, is forgotten",
    ),
    Mutant(
        "ledger-broadcast-root-sends-last",
        "course_lib/ledger/forms.py",
        "last = (root - 1) % n",
        "last = (root + 1) % n",
        (
            "tests/ledger/test_ledger_forms.py::test_a_broadcast_is_a_chain_and_a_reduce_the_chain_backwards",
            "tests/ledger/test_ledger_verbs.py::test_every_verb_is_booked_once_with_its_closed_form_and_moves_no_more[3]",
        ),
        "the wrong end of the chain is the one that sends nothing",
    ),
    Mutant(
        "ledger-even-cut-assumed",
        "course_lib/ledger/calls.py",
        "    return rows[group.rank()] * row",
        "    return payload // group.size()",
        ("tests/ledger/test_ledger_verbs.py::test_raw_calls_are_read_whatever_their_form",),
        "an uneven piece is booked as an even one",
        "T29",
    ),
    Mutant(
        "ledger-verb-booked-by-its-parts",
        "course_lib/ledger/watch.py",
        "record = self._of_verb.get(verb) if verb is not None else None",
        "record = None",
        (
            "tests/ledger/test_ledger_verbs.py::test_every_verb_is_booked_once_with_its_closed_form_and_moves_no_more[3]",
        ),
        "a reduce-scatter on gloo appears as the all-to-all it is made of",
    ),
    Mutant(
        "ledger-dtensor-keeps-its-collectives",
        "course_lib/ledger/watch.py",
        "if any(_is_distributed(kind) for kind in types):",
        "if False:",
        (
            "tests/ledger/test_ledger_peers.py::test_functional_collectives_are_booked_once_and_end_when_they_are_waited_for[2]",
        ),
        "a DTensor hides the collectives it issues",
    ),
    Mutant(
        "ledger-body-of-functional-unseen",
        "course_lib/ledger/watch.py",
        "            with self:\n                result = func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)",
        "            result = func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)",
        (
            "tests/ledger/test_ledger_peers.py::test_functional_collectives_are_booked_once_and_end_when_they_are_waited_for[2]",
        ),
        "a functional collective is booked without its completion",
    ),
    Mutant(
        "ledger-outer-not-told-of-functional",
        "course_lib/ledger/watch.py",
        "watches = [self, *(m for m in _get_current_dispatch_mode_stack() if type(m) is Watch)]",
        "watches = [self]",
        (
            "tests/ledger/test_ledger_peers.py::test_functional_collectives_are_booked_once_and_end_when_they_are_waited_for[2]",
        ),
        "a nested ledger takes calls away from the outer one",
    ),
    Mutant(
        "ledger-ends-when-issued",
        "course_lib/ledger/flight.py",
        "        future.add_done_callback(tell)",
        "        tell()",
        ("tests/ledger/test_ledger_book.py::test_a_span_lasts_as_long_as_the_call_is_under_way",),
        "an asynchronous call seems to end when it starts: no overlap is ever seen",
        "T33",
    ),
    Mutant(
        "ledger-holds-the-last-buffer",
        "course_lib/ledger/flight.py",
        "        if self._newest is work:\n            self._newest = None\n",
        "",
        (
            "tests/ledger/test_ledger_book.py::test_a_ledger_leaves_nothing_behind_and_holds_nothing",
        ),
        "the ledger keeps a handle and its buffers alive",
        "T33",
    ),
    Mutant(
        "ledger-late-tellers-not-awaited",
        "course_lib/ledger/flight.py",
        "any(f.done() for f in list(self._tellers.values()))",
        "False",
        (
            "tests/ledger/test_ledger_book.py::test_the_end_is_known_even_if_its_thread_was_slow_to_tell",
        ),
        "a span stays open because its callback came late",
    ),
    Mutant(
        "ledger-wait-stays-patched",
        "course_lib/dispatch/waits.py",
        "                dist.Work.wait = method.original\n",
        "",
        (
            "tests/ledger/test_ledger_book.py::test_a_ledger_leaves_nothing_behind_and_holds_nothing",
        ),
        "the ledger leaves torch changed behind",
    ),
    Mutant(
        "ledger-counts-every-socket",
        "course_lib/ledger/wire.py",
        "if inode is None or (fd, inode) in self._written or not self._has_timeout(fd):",
        "if inode is None or (fd, inode) in self._written:",
        (
            "tests/ledger/test_ledger_wire.py::test_only_what_was_written_to_gloos_sockets_since_counts",
        ),
        "a socket that is not gloo's is counted as moved",
    ),
    Mutant(
        "ledger-unsent-bytes-forgotten",
        "course_lib/ledger/wire.py",
        "return sent - repeated + NOT_SENT.unpack_from(info, 144)[0]",
        "return sent - repeated",
        (
            "tests/ledger/test_ledger_wire.py::test_bytes_count_when_they_are_written_even_if_the_wire_is_full",
        ),
        "bytes handed to a full wire do not count yet",
    ),
    Mutant(
        "ledger-reused-number-misread",
        "course_lib/ledger/wire.py",
        "            if _socket_inode(fd) == inode:",
        "            if True:",
        (
            "tests/ledger/test_ledger_wire.py::test_a_closed_connection_keeps_its_last_reading_even_if_its_number_is_reused",
        ),
        "a closed connection is read through another's file number",
    ),
    Mutant(
        "ledger-outer-phase-wins",
        "course_lib/ledger/book.py",
        "return self._marked[-1] if self._marked else None",
        "return self._marked[0] if self._marked else None",
        ("tests/ledger/test_ledger_book.py::test_the_phase_is_found_and_a_marked_one_wins",),
        "a phase marked inside another is ignored",
    ),
    Mutant(
        "ledger-labels-run-on",
        "course_lib/collectives/call.py",
        "        _label.reset(token)",
        "        pass",
        ("tests/ledger/test_ledger_book.py::test_a_label_tells_messages_apart",),
        "what follows a labelled message bears its label",
    ),
    Mutant(
        "ledger-labels-not-asked-for",
        "course_lib/ledger/book.py",
        "            and label in (None, record.label)",
        "            and label in (None, label)",
        ("tests/ledger/test_ledger_book.py::test_a_label_tells_messages_apart",),
        "the bytes of scalars are the bytes of all",
    ),
    Mutant(
        "ledger-packages-by-the-folders-name",
        "course_lib/ledger/origin.py",
        'lists = Path(place).glob("*.dist-info/RECORD")',
        'lists = Path(place).glob("site-packages/*.dist-info/RECORD")',
        (
            "tests/ledger/test_ledger_origin.py::test_what_pip_put_into_any_folder_is_a_library_and_what_lies_beside_it_is_not",
        ),
        "a package of `pip install --target` counts as the reader's own code",
    ),
    Mutant(
        "ledger-step-not-recognised",
        "course_lib/ledger/origin.py",
        'if name == "step" and hasattr(frame.f_locals.get("self"), "param_groups"):',
        "if False:",
        ("tests/ledger/test_ledger_book.py::test_the_phase_is_found_and_a_marked_one_wins",),
        "an optimizer's traffic is booked elsewhere",
    ),
    Mutant(
        "ledger-backward-looks-like-forward",
        "course_lib/ledger/origin.py",
        '    if torch._C._current_graph_task_id() != -1:\n        return "backward"\n',
        "",
        ("tests/ledger/test_ledger_book.py::test_the_phase_is_found_and_a_marked_one_wins",),
        "the backward's traffic is booked as forward",
    ),
    Mutant(
        "ledger-sum-of-rounded-thirds",
        "course_lib/ledger/book.py",
        "parts = (Fraction(round(getattr(r, column) * r.ranks), r.ranks) for r in records)",
        "parts = (Fraction(getattr(r, column)) for r in records)",
        (
            "tests/ledger/test_ledger_book.py::test_questions_are_answered_exactly_and_unknown_names_refused",
        ),
        "three thirds add up to a little less than one",
        "T28",
    ),
]
