"""The doctor's look at GPUs, on texts as nvidia-smi prints them and on machines without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_classroom.doctor import gpus, torch_build
from course_classroom.doctor.finding import Finding
from course_classroom.doctor.torch_build import Torch, trouble
from course_classroom.leases.smi import Answer

FOUR = """\
0, GPU-aa, NVIDIA H100 80GB HBM3, 81559, 1, 580.65.06, Default, Disabled
1, GPU-bb, NVIDIA H100 80GB HBM3, 81559, 4, 580.65.06, Exclusive_Process, Disabled
2, GPU-cc, NVIDIA H100 80GB HBM3, 81559, 30000, 580.65.06, Default, Enabled
3, GPU-dd, NVIDIA T4, 15360, 2000, 580.65.06, Prohibited, [N/A]
"""
HEAD = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0     |\n"
TOPO = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tSYS\tPIX\t0-15\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tSYS\tNODE\t0-15\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tPHB\tSYS\t16-31\t1\t\tN/A
GPU3\tSYS\tSYS\tPHB\t X \tSYS\t16-31\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \t\t\t\t

Legend:
  X    = Self
  SYS  = between two sockets
"""
NO_FILE = Path("/no/such/file")
HERE = Path(__file__)  # stands for the file of a loaded driver


class Machine:
    """An nvidia-smi that answers with these texts, and remembers what it was asked."""

    def __init__(self, gpus: str = FOUR, topo: str = TOPO, code: int = 0) -> None:
        self.texts = {"--query-gpu": gpus, "topo": topo, "": HEAD}
        self.code = code

    def __call__(self, arguments: list[str]) -> Answer:
        key = arguments[0].split("=")[0] if arguments else ""
        return Answer(self.code, self.texts[key], self.texts[key])


def absent(arguments: list[str]) -> Answer:
    return Answer(None, said="nvidia-smi cannot be run (No such file or directory)")


def by_name(found: list[Finding]) -> dict[str, list[Finding]]:
    names: dict[str, list[Finding]] = {}
    for one in found:
        assert one.level == "ok" or one.remedy
        names.setdefault(one.name, []).append(one)
    return names


def test_gpus_are_counted_and_each_oddity_gets_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = by_name(gpus.gpus(Machine(), NO_FILE))
    (all_of_them,) = found["GPUs"]
    assert all_of_them.level == "ok"
    assert all_of_them.found == (
        "3 × NVIDIA H100 80GB HBM3, 85.5 GB; 1 × NVIDIA T4, 16.1 GB; "
        "driver 580.65.06, CUDA up to 13.0"
    )
    assert "GPU 0" not in found, "the driver's own use is nobody's"
    (exclusive,) = found["GPU 1"]
    assert exclusive.level == "note" and exclusive.remedy == "sudo nvidia-smi -i 1 -c DEFAULT"
    mig, busy = found["GPU 2"]
    assert mig.level == "note" and "MIG is on" in mig.found and "-i 2 -mig 0" in mig.remedy
    assert busy.found == "other programs use 31.5 GB of 85.5 GB"
    prohibited, taken = found["GPU 3"]
    assert prohibited.level == "bad" and "no program may use it" in prohibited.found
    assert taken.found.startswith("other programs use 2.1 GB of 16.1 GB")


def test_a_gpu_that_two_ranks_do_not_fit_on_is_told() -> None:
    """Each takes half a gigabyte before any tensor, and a lease refuses it."""
    full = FOUR.replace("15360, 2000", "15360, 14400")
    found = by_name(gpus.gpus(Machine(full), NO_FILE))["GPU 3"][-1]
    assert found.level == "bad" and found.found.endswith(
        "; two ranks need 1.07 GB of it before they allocate tensors"
    )


def test_a_mask_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    found = gpus.gpus(Machine(), NO_FILE)[0].found
    assert found.endswith("CUDA_VISIBLE_DEVICES='1,3' restricts them")


def test_a_gpu_without_memory_of_its_own() -> None:
    row = "0, GPU-aa, NVIDIA GB10, [N/A], [N/A], 580.1, Default, [N/A]\n"
    found = gpus.gpus(Machine(row), NO_FILE)
    assert [one.name for one in found] == ["GPUs"]
    assert found[0].found.startswith("1 × NVIDIA GB10, the machine's memory; driver 580.1")


@pytest.mark.parametrize(
    ("answers", "driver", "level", "says"),
    [
        (absent, NO_FILE, "ok", "no GPU and no NVIDIA driver"),
        (absent, HERE, "bad", "a driver is loaded, but nvidia-smi does not answer"),
        (Machine("it couldn't talk to the driver", code=9), NO_FILE, "bad", "talk to the driver"),
        (Machine("No devices were found"), HERE, "bad", "finds none: No devices were found"),
    ],
)
def test_a_machine_that_shows_no_gpu(answers, driver: Path, level: str, says: str) -> None:
    (found,) = gpus.gpus(answers, driver)
    assert (found.level, says in found.found) == (level, True), found
    assert gpus.listed(answers) == []
    assert gpus.has_driver(answers, driver) == (driver == HERE)


def test_gpus_without_the_drivers_file_are_a_driver_too() -> None:
    assert gpus.has_driver(Machine(), NO_FILE)


def test_links_are_read_for_each_pair() -> None:
    assert gpus.read_links(TOPO) == {
        (0, 1): "NV18", (0, 2): "NV18", (0, 3): "SYS", (1, 2): "NV18", (1, 3): "SYS", (2, 3): "PHB",
    }  # fmt: skip
    (found,) = gpus.links(Machine())
    assert found.found.startswith("3 pairs over NV18, 2 pairs over SYS, 1 pair over PHB (NVLink, ")
    assert found.found.endswith("SYS crosses from one CPU socket to the other")


def test_links_of_one_gpu_or_of_none_are_no_matter() -> None:
    assert gpus.links(Machine(FOUR.splitlines()[0])) == []
    assert gpus.links(absent) == []
    assert gpus.links(Machine(topo="not supported")) == []


def test_the_drivers_cuda_is_read_in_both_spellings() -> None:
    assert gpus.read_cuda(HEAD) == "13.0"
    assert gpus.read_cuda("| KMD Version: 590.1   CUDA UMD Version: 13.1  |") == "13.1"
    assert gpus.read_cuda("nothing of the kind") == ""


# --- torch beside the driver ---------------------------------------------------------------------

CPU = Torch("2.13.0+cpu", None, 0, None)
CUDA = Torch("2.13.0+cu130", "13.0", 8, "2.29.7")
BLIND = Torch("2.13.0+cu130", "13.0", 0, "2.29.7")


@pytest.mark.parametrize(
    ("torch", "driver", "newest", "visible", "level", "says"),
    [
        (CPU, False, "", None, "ok", "built for the CPU, sees 0 GPU(s)"),
        (CUDA, True, "13.0", None, "ok", "built for CUDA 13.0, sees 8 GPU(s)"),
        (BLIND, False, "", None, "ok", "sees 0 GPU(s)"),
        (CPU, True, "13.0", None, "bad", "this build cannot use it"),
        (CPU, True, "13.0", "0", "bad", "this build cannot use it"),
        (BLIND, True, "12.8", None, "bad", "the driver supports CUDA up to 12.8"),
        (BLIND, True, "13.1", None, "bad", "although a driver is loaded"),
        (BLIND, True, "13.1", "", "note", "CUDA_VISIBLE_DEVICES='' hides the others"),
    ],
)
def test_torchs_build_against_the_driver(
    torch: Torch, driver: bool, newest: str, visible: str | None, level: str, says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = by_name(torch_build.judge(torch, driver, newest, visible))["torch"][0]
    assert (found.level, says in found.found) == (level, True), found
    if torch is CPU and driver:
        assert found.remedy.startswith("make clean, then make setup")


def test_nccl_is_missed_only_where_there_are_gpus_for_it() -> None:
    assert by_name(torch_build.judge(CUDA, True, "13.0"))["NCCL"][0].found.startswith("2.29.7")
    assert by_name(torch_build.judge(CPU, False))["NCCL"][0].level == "ok"
    two = Torch("2.13.0", "13.0", 2, None)
    assert by_name(torch_build.judge(two, True, "13.0"))["NCCL"][0].level == "bad"


def test_a_device_that_computes_and_one_that_is_not_there() -> None:
    assert trouble("cpu") == ""
    (found,) = torch_build.gpus_compute(("cpu", "cuda:99"))
    assert found.level == "bad" and found.found.startswith("cuda:99: "), found


def test_a_device_that_computes_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    whole = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: whole(a, b) + a.is_floating_point()
    )
    assert trouble("cpu") == "the product is wrong"


@pytest.mark.gpu
@pytest.mark.skipif(not gpus.listed(), reason="nvidia-smi lists no GPU here")
def test_the_gpus_of_this_machine() -> None:
    found = by_name(gpus.gpus())
    assert found["GPUs"][0].level == "ok" and f"{len(gpus.listed())} × " in found["GPUs"][0].found
    (computed,) = torch_build.gpus_compute()
    assert computed.level == "ok", computed
