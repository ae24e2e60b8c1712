"""Where a call comes from: the line of a cell or a script, the issuer, a thread without lines."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from course_lib.ledger import origin

pytestmark = pytest.mark.cpu("lines of code")


def compiled(source: str, filename: str) -> dict:
    """What a piece of source defines when it was compiled under that name."""
    namespace = {"origin": origin, "threading": threading}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


ASK = "def ask():\n\n    return origin.find(False, False, threading.get_ident())\n"


@pytest.mark.parametrize(
    ("filename", "site"),
    [
        ("/var/folders/ipykernel_4711/1234.py", "cell:3"),
        ("<ipython-input-3-abcdef>", "cell:3"),
        ("/home/somebody/train.py", "train.py:3"),
    ],
)
def test_the_site_is_the_readers_own_line(filename, site):
    assert compiled(ASK, filename)["ask"]() == (site, "other", "torch.distributed")


@pytest.mark.parametrize(
    "library",
    [
        origin.TORCH + "distributed/distributed_c10d.py",
        origin.VERBS + "verbs.py",
        *(folder + "gpt.py" for folder in origin.HOUSE),
        "/env/lib/python3.11/site-packages/somebody/trainer.py",
        "/usr/lib/python3/dist-packages/somebody/trainer.py",
        threading.__file__,
    ],
)
def test_lines_of_libraries_are_passed_over(library):
    ask = compiled(ASK, library)["ask"]
    call = compiled("def call(ask):\n    return ask()\n", "/home/somebody/train.py")["call"]
    assert call(ask).site == "train.py:2"


def test_what_pip_put_into_any_folder_is_a_library_and_what_lies_beside_it_is_not(
    tmp_path, monkeypatch
):
    (tmp_path / "somebody-1.0.dist-info").mkdir()
    record = "somebody/__init__.py,,\nsomebody/trainer.py,,\nalone.py,,\n"
    (tmp_path / "somebody-1.0.dist-info" / "RECORD").write_text(record)
    monkeypatch.syspath_prepend(str(tmp_path))
    call = compiled("def call(ask):\n    return ask()\n", str(tmp_path / "train.py"))["call"]
    for library in ("somebody/trainer.py", "alone.py"):
        assert call(compiled(ASK, str(tmp_path / library))["ask"]).site == "train.py:2"
    ask = compiled(ASK, str(tmp_path / "some" / "body.py"))["ask"]
    assert call(ask).site == "body.py:3"


@pytest.mark.parametrize(
    ("library", "issuer"),
    [
        (origin.TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "FSDP"),
        (origin.TORCH + "distributed/tensor/_redistribute.py", "DTensor"),
        (origin.TORCH + "nn/parallel/distributed.py", "DDP"),
        ("/env/lib/python3.11/site-packages/deepspeed/comm/torch.py", "DeepSpeed"),
        (origin.VERBS + "verbs.py", "course_lib"),
        (origin.TORCH + "distributed/distributed_c10d.py", "torch.distributed"),
    ],
)
def test_the_issuer_is_the_library_nearest_to_the_call(library, issuer):
    assert compiled(ASK, library)["ask"]().issued_by == issuer


def test_without_a_readers_line_the_courses_own_program_is_named():
    source = "import sys\n\ndef frame_of():\n    return sys._getframe()\n"
    in_verbs, in_program = (
        compiled(source, origin.HOUSE[0] + path)["frame_of"]()
        for path in ("collectives/v.py", "t.py")
    )
    assert origin._site([in_verbs]) is None
    assert origin._site([in_verbs, in_program]) == "t.py:4"


def test_a_thread_without_a_readers_line_is_given_the_one_its_opener_stands_in():
    # Nothing but Python's own frames is on that thread's stack, as on one of autograd's.
    find = functools.partial(origin.find, False, False, threading.get_ident())
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(find).result().site.startswith("test_ledger_origin.py:")
