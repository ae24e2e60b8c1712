"""What pip says, read right: the remedy for each failure, and which torch is asked from where.

The outputs are pip's own, shortened; the pip that installs torch here only writes down the calls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bootstrap import room, torch_build
from tools.bootstrap.pip_words import Progress, complaints, diagnose
from tools.bootstrap.say import Refusal

REFUSED = (
    "Looking in indexes: http://127.0.0.1:9/simple\n"
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after "
    "connection broken by 'NewConnectionError('<HTTPConnection object>: Failed to establish a new "
    "connection: [Errno 111] Connection refused')': /simple/torch/\n"
)
NO_MATCH = (
    "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 "
    "(from versions: none)\nERROR: No matching distribution found for torch==2.13.0\n"
)
CONFLICT = (
    "ERROR: Cannot install alpha>=1.0 because these package versions have conflicting "
    "dependencies.\n    The user requested (constraint) alpha==9.9\nERROR: ResolutionImpossible: "
)
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("output", "cause", "remedy"),
    [
        (FULL, "ran full", "TMPDIR"),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/me/x'", "ran full", "PIP_CACHE_DIR"),
        ("OSError: [Errno 30] Read-only file system: '/c/.venv'", "read-only", "COURSE_VENV"),
        (
            "ERROR: Could not install packages: [Errno 13] Permission denied: 'x'",
            "may not be read or written",
            "made as root",
        ),
        (REFUSED + NO_MATCH, "could not be reached", "HTTPS_PROXY"),
        (REFUSED + CONFLICT, "could not be reached", "it carries on"),
        (
            "NewConnectionError: [Errno -3] Temporary failure in name resolution",
            "could not be reached",
            "connect this machine",
        ),
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...'))"
            + NO_MATCH,
            "certificate was not accepted",
            "PIP_CERT",
        ),
        ("Looking in indexes: https://a/simple\n" + NO_MATCH, "its package index", "PYTHON="),
        ("Looking in links: /w\n" + NO_MATCH, "folders of wheels", "PIP_NO_INDEX"),
        (CONFLICT, "constraints.txt names is not to be had", "git status"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM", "not what the index promised", "purge"),
        (
            REFUSED + "x.c:1:10: fatal error: Python.h: No such file or directory\n"
            "ERROR: Failed building wheel for x\n",
            "compiler or Python's headers",
            "python3-dev",
        ),
        ("  ERROR: Failed building wheel for deepspeed\n", "deepspeed could not be built", "g++"),
    ],
)
def test_each_failure_has_its_own_remedy(output: str, cause: str, remedy: str) -> None:
    told = diagnose(output)
    assert told is not None
    assert cause in told.cause
    assert remedy in told.remedy


def test_a_full_disk_is_named_before_its_consequences() -> None:
    told = diagnose(REFUSED + FULL + "ERROR: Failed building wheel for x\n")
    assert told is not None
    assert "ran full" in told.cause


def test_what_is_not_known_is_not_guessed() -> None:
    assert diagnose("Successfully installed alpha-1.0\n") is None
    assert diagnose("Segmentation fault\n") is None


def test_progress_is_a_few_readable_lines() -> None:
    lines = [
        "Collecting alpha==1.0 (from -c constraints.txt (line 2))",
        "  Downloading alpha-1.0-py3-none-any.whl (17 kB)",
        "Collecting torch==2.13.0",
        "  Downloading https://x/whl/torch-2.13.0%2Bcpu-cp311-cp311-linux.whl (191.8 MB)",
        "Collecting big",
        "  Downloading big-2-py3-none-any.whl (1.2 GB)",
        "WARNING: Location 'file:///x' is ignored",
        "Building wheels for collected packages: deepspeed",
        "  Building wheel for deepspeed (setup.py): started",
        "  Building wheel for deepspeed (setup.py): still running...",
        "Installing collected packages: alpha, torch, big",
        "Successfully installed alpha-1.0",
    ]
    progress = Progress()
    assert [told for told in map(progress.read, lines) if told] == [
        "  downloading torch 2.13.0+cpu, 191.8 MB",
        "  downloading big 2, 1.2 GB",
        "  building deepspeed",
        "  installing 3 packages",
    ]
    assert progress.alive("20 s") == "  ... 20 s: 3 packages so far, installing 3 packages"


def test_complaints_are_pips_error_lines_or_its_last() -> None:
    assert complaints(["Collecting a", "ERROR: no", "WARNING: x"]) == ["ERROR: no"]
    assert complaints(["one", "", "two"], limit=1) == ["two"]


class Written:
    """A pip that writes its calls down; it finds a local wheel or not, as told."""

    def __init__(self, local: bool, output: str = NO_MATCH) -> None:
        self.local, self.output = local, output
        self.calls: list[tuple[str, ...]] = []
        self.python = Path(__file__)

    def try_install(self, *arguments: str) -> tuple[bool, str]:
        self.calls.append(arguments)
        return self.local, "" if self.local else self.output

    def install(self, *arguments: str) -> None:
        self.calls.append(arguments)

    def refuse(self, code: int, output: str) -> None:
        raise diagnose(output) or Refusal("?", "?")


LOCAL = ("--no-index", "--no-deps", "torch==2.13.0")
PINS = Path("constraints.txt")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    monkeypatch.setattr(torch_build.platform, "system", lambda: "Linux")


@pytest.mark.parametrize("driver", [False, True])
def test_a_local_wheel_is_taken_and_no_index_asked(
    driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_build, "has_nvidia_driver", lambda: driver)
    monkeypatch.setenv("TORCH_INDEX_URL", "https://mirror/whl")
    pip = Written(local=True)
    torch_build.install_torch(pip, "2.13.0", None, PINS)
    assert pip.calls == [LOCAL]


def test_without_a_driver_the_cpu_build_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "has_nvidia_driver", lambda: False)
    pip = Written(local=False)
    torch_build.install_torch(pip, "2.13.0", None, PINS)
    index = "https://download.pytorch.org/whl/cpu"
    assert pip.calls == [LOCAL, ("--index-url", index, "--no-deps", "torch==2.13.0+cpu")]


@pytest.mark.parametrize("driver", [False, True])
def test_torch_index_url_overrides(driver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "has_nvidia_driver", lambda: driver)
    monkeypatch.setenv("TORCH_INDEX_URL", "https://mirror/whl")
    pip = Written(local=False)
    torch_build.install_torch(pip, "2.13.0", "2.12.0", PINS)
    assert pip.calls[1:] == [("--index-url", "https://mirror/whl", "--no-deps", "torch==2.13.0")]


def test_with_a_driver_the_size_is_said_and_the_disk_asked_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_build, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(room, "free_bytes", lambda folder: 5e9)
    pip = Written(local=False)
    with pytest.raises(Refusal, match=r"5\.0 GB free; this step needs about"):
        torch_build.install_torch(pip, "2.13.0", None, PINS)
    assert "about 3 GB to download" in capsys.readouterr().out
    assert pip.calls == [LOCAL], "nothing is downloaded that will not fit"
    monkeypatch.setattr(room, "free_bytes", lambda folder: 50e9)
    torch_build.install_torch(pip, "2.13.0", None, PINS)
    assert pip.calls[2:] == [("-c", "constraints.txt", "torch==2.13.0")]


@pytest.mark.parametrize("installed", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_any_build_of_the_pinned_release_is_kept(installed: str) -> None:
    pip = Written(local=True)
    torch_build.install_torch(pip, "2.13.0", installed, PINS)
    assert pip.calls == []


def test_a_local_wheel_that_does_not_fit_on_the_disk_is_no_reason_to_ask_an_index() -> None:
    pip = Written(local=False, output=FULL)
    with pytest.raises(Refusal, match="ran full"):
        torch_build.install_torch(pip, "2.13.0", None, PINS)
    assert pip.calls == [LOCAL]


def test_room_names_the_disk_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda folder: 1.5e9)
    room.need_room(tmp_path, 1e9, downloads=0.4e9)
    with pytest.raises(Refusal, match=r"1\.5 GB free; this step needs about 2\.0 GB") as refused:
        room.need_room(tmp_path, 1.6e9, downloads=0.4e9)
    assert "larger disk" in refused.value.remedy
