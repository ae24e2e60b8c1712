"""Hostfiles and filters are read as DeepSpeed reads them; what is wrong has its line and remedy."""

from __future__ import annotations

import pytest

from course_lib.peers.launchers import filters, hostfile
from course_lib.peers.launchers.filters import choose
from tests.course_lib.peers.launchers.oracle import answers

GOOD = "# two nodes\n\nworker-0 slots=8\n\tworker-1\tslots=8   # the second\n"
# A hostfile, and (line, level, kind, a word of message or remedy) of each finding.
FILES = [
    (GOOD, []),
    ("", [(1, "error", "empty", "worker-0 slots=8")]),
    ("# nobody\n\n", [(1, "error", "empty", "names no host")]),
    ("a slots=8\na slots=4\n", [(2, "error", "twice", "line 1")]),
    ("a slots=8\nb\n", [(2, "error", "entry", "b has no slots")]),
    ("a slot=8", [(1, "error", "entry", "write `a slots=8`")]),
    ("a slots = 8", [(1, "error", "entry", "write `a slots=8`")]),
    ("a:8", [(1, "error", "entry", "write `a slots=8`")]),
    ("a slots=-1", [(1, "error", "entry", "negative")]),
    ("a slots=", [(1, "error", "entry", "host slots=N")]),
    ("slots=8", [(1, "error", "entry", "host slots=N")]),
    ("a slots=eight", [(1, "error", "entry", "host slots=N")]),
    ("a slots=0\nb slots=2", [(1, "warning", "zero", "starts no rank")]),
    ("a slots=8x", [(1, "warning", "cut", "`8x` is read as 8")]),
    ("a slots=2.5", [(1, "warning", "cut", "is read as 2")]),
    ("a slots=8 max_slots=16", [(1, "warning", "rest", "`max_slots=16` is not read")]),
    ("a:22 slots=8", [(1, "warning", "name", "~/.ssh/config")]),
    ("fe80::1 slots=8", [(1, "warning", "name", "`:`")]),
    ("node slots=8\nNODE slots=8", [(2, "warning", "case", "same machine")]),
    ("localhost slots=8\nb slots=8", [(1, "warning", "loopback", "that node itself")]),
    ("a slots=8\n127.0.0.1 slots=8", [(2, "warning", "loopback", "with other hosts")]),
    ("localhost slots=8", []),
    ("a slots=3\nb slots=2", [(1, "hint", "uneven", "2 and 3")]),
    ("a slots=8\r\nb slots=8\r\n", []),
    ("a slot=8\nb slots=8\nb slots=8", [(1, "error", "entry", "`a slots=8`"),
                                       (3, "error", "twice", "line 2")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FILES, ids=lambda x: repr(x)[:24])
def test_what_is_wrong_with_a_hostfile_has_its_line_and_its_remedy(text, expected):
    found = hostfile.parse(text).findings
    assert [(x.line, x.level, x.kind) for x in found] == [x[:3] for x in expected]
    for item, (*_, word) in zip(found, expected, strict=True):
        assert word in f"{item.message} {item.reason} {item.suggestion}"
        assert item.reason and item.source and item.suggestion


def test_a_hostfile_is_read_from_its_file_without_which_deepspeed_goes_on_alone(tmp_path):
    file = tmp_path / "hosts"
    (item,) = hostfile.load(file).findings
    assert item.kind == "missing" and "only the GPUs of this node" in item.reason
    file.write_text(GOOD)
    assert hostfile.load(file).slots == {"worker-0": 8, "worker-1": 8}


SLOTS = {"a": 4, "b": 4, "none": 0, "with:colon": 2}
# --include, --exclude; the devices; (level, kind, a word) of each finding.
FILTERS = [
    ("", "", {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3], "none": [], "with:colon": [0, 1]}, []),
    ("b:0,2", "", {"b": [0, 2]}, []),
    ("b@a:1", "", {"a": [1], "b": [0, 1, 2, 3]}, []),
    ("", "a@b:0", {"b": [1, 2, 3], "with:colon": [0, 1]}, []),
    ("a:0@a:2", "", {"a": [0, 2]}, []),
    ("a:1,0", "", {"a": [0, 1]}, [("hint", "order", "0,1")]),
    ("a@a:1", "", {"a": [1]}, [("warning", "whole", "`a:1`")]),
    ("a:1@a", "", {"a": [1]}, [("warning", "whole", "and with 1")]),
    ("a@a", "", {"a": [0, 1, 2, 3]}, []),
    ("a", "b", {}, [("error", "both", "one of the two")]),
    ("c", "", {}, [("error", "host", "c is not in the hostfile")]),
    ("", "b ", {}, [("error", "host", "write b")]),
    ("a@", "", {}, [("error", "host", "an empty name")]),
    ("a:4", "", {}, [("error", "device", "0 to 3")]),
    ("a:-1", "", {}, [("error", "device", "-1")]),
    ("none:0", "", {}, [("error", "device", "none")]),
    ("none", "", {}, [("error", "nothing", "IndexError")]),
    ("", "a@b@none@with:colon", {}, [("error", "number", "`colon`")]),
    ("a:0-2", "", {}, [("error", "number", "write 0,1,2")]),
    ("a:0,", "", {}, [("error", "number", "nothing is not a device")]),
    ("a:0:1", "", {}, [("error", "colons", "IPv6")]),
    ("a: 0", "", {"a": [0]}, []),
]


@pytest.mark.parametrize(("include", "exclude", "devices", "expected"), FILTERS)
def test_a_filter_leaves_devices_or_is_refused_with_a_remedy(include, exclude, devices, expected):
    chosen = choose(SLOTS, include, exclude)
    assert list(chosen.devices.items()) == list(devices.items())
    assert [(x.level, x.kind) for x in chosen.findings] == [x[:2] for x in expected]
    for item, (*_, word) in zip(chosen.findings, expected, strict=True):
        assert word in f"{item.message} {item.reason} {item.suggestion}"


@pytest.fixture(scope="module")
def deepspeeds():
    pytest.importorskip("deepspeed")
    files = [text for text, _ in FILES]
    given = [(SLOTS, include, exclude) for include, exclude, *_ in FILTERS]
    return files, given, *answers(files, given)


def test_deepspeed_reads_the_same_hosts_and_refuses_the_same_files(deepspeeds):
    files, _, read, _ = deepspeeds
    for text, theirs in zip(files, read, strict=True):
        ours = hostfile.parse(text)
        assert [list(x) for x in ours.slots.items()] == (theirs or []), repr(text)
        refused = any(x.level == "error" for x in ours.findings)
        assert refused == (theirs is None), repr(text)
    assert 9 < sum(x is None for x in read) < len(read) - 9


def test_deepspeed_chooses_the_same_devices_and_refuses_the_same_filters(deepspeeds):
    _, given, _, chosen = deepspeeds
    for entry, theirs in zip(given, chosen, strict=True):
        ours = choose(*entry)
        assert [list(x) for x in ours.devices.items()] == (theirs or []), entry
        # Nothing left is no error of the parser's, but of what reads its answer.
        assert any(x.level == "error" for x in ours.findings) == (not theirs), entry
    assert 9 < sum(x is None for x in chosen) < len(chosen) - 9


def test_a_range_is_only_written_out_where_it_is_short():
    (item,) = choose({"a": 4}, "a:0-100").findings
    assert item.suggestion == f"write {filters.FORM}"
