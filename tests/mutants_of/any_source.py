"""Mistakes in how the referee takes a receive from any rank."""

from __future__ import annotations

from tests.mutation import Mutant

ROOM = "course_lib/classroom/"
TESTS = "tests/classroom/test_any_source.py::test_"
ORDERLY = TESTS + "messages_from_any_rank_arrive_and_later_ones_are_counted_right"
BESIDE = TESTS + "a_named_message_beside_an_open_receive_passes"
SHAPES = TESTS + "a_message_of_another_shape_is_told_on_both_ranks"


def mutant(name: str, file: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"any-source-{name}", ROOM + file, old, new, (test,), why, "T30")


MUTANTS = [
    mutant(
        "unrefereed",
        "calls.py",
        "    if operation is None:\n",
        "    if operation is None or (operation.verb == 'recv' and not operation.peer):\n",
        TESTS + "a_receive_that_no_rank_sends_to_ends_at_once",
        "a rank waits inside gloo, where nobody can free it",
    ),
    mutant(
        "arrival-not-posted",
        "referee.py",
        "        if id(work) in self._arriving:\n",
        "        if False:\n",
        f"{ORDERLY}[2]",
        "the sender waits for a receive that has long come",
    ),
    mutant(
        "arrival-not-counted",
        "any_source.py",
        "        self.counts[key] += 1\n        return key, self.counts[key]",
        "        return key, self.counts[key] + 1",
        f"{ORDERLY}[2]",
        "the next message is taken for the one before",
    ),
    mutant(
        "stays-open",
        "any_source.py",
        "        self.counts[open_key(call)] -= 1\n",
        "",
        f"{ORDERLY}[2]",
        "a receive that has arrived makes the group unfit for the next cell",
    ),
    mutant(
        "no-send-is-enough",
        "any_source.py",
        "return untaken if len(untaken) >= number - self._arrived[open_key(call)] else []",
        "return untaken",
        TESTS + "ranks_that_receive_twice_and_are_sent_one_message_are_told",
        "one send frees every receive, and the second waits inside gloo",
    ),
    mutant(
        "any-shape-fits",
        "referee.py",
        "            if sends and not self._one_fits(meeting, [theirs for _, theirs in sends]):",
        "            if False:",
        SHAPES,
        "gloo ends the process where the message does not fit",
    ),
    mutant(
        "a-name-is-compared-beside-it",
        "any_source.py",
        "        beside = self.counts[open_key(call)] > 0\n",
        "        beside = False\n",
        BESIDE,
        "a program that tells its messages by tags is refused",
    ),
    mutant(
        "one-receive-for-two-sends",
        "referee.py",
        "        if len(receives) < meeting.number - met:\n",
        "        if not receives:\n",
        TESTS + "two_sends_before_one_receive_wait_for_a_second",
        "the second send waits inside gloo, where nobody can free it",
    ),
    mutant(
        "arrived-and-open-at-once",
        "referee.py",
        """        earlier = range(meeting.number - 1, 0, -1)
        met = next((n for n in earlier if self.inbox.find(peer, meeting.key, n) is not None), 0)
        # Read after what is met: a message that arrives in between is then counted as neither, and
        # not as both.
        receives = any_source.still_open(self.inbox.posts(peer), any_source.open_key(meeting.call))
""",
        """        key = any_source.open_key(meeting.call)
        receives = any_source.still_open(self.inbox.posts(peer), key)
        earlier = range(meeting.number - 1, 0, -1)
        met = next((n for n in earlier if self.inbox.find(peer, meeting.key, n) is not None), 0)
""",
        TESTS + "a_receive_that_arrives_while_a_second_send_looks_is_not_open_as_well",
        "a receive that arrives between two looks frees a second send, which waits inside gloo",
    ),
    mutant(
        "waits-for-each-other-unseen",
        "any_source.py",
        """return f"{call.group_name}:{','.join(map(str, call.members))}>{call.peer[1]}\"""",
        """return f"{call.group_name}:any>{call.peer[1]}\"""",
        TESTS + "ranks_that_all_receive_from_any_are_freed_before_the_deadline",
        "ranks that all receive use up the whole deadline",
    ),
]
