"""Failures that readers may see: one provoked on two ranks of this host, and explanations of any
launcher's output and return code in one sentence for the cause and one for the remedy.

Launchers describe the same failure differently. Signs are checked in causal order; if none matches,
the cause is reported as unknown. Lesson 13.
"""

from __future__ import annotations

import re
import signal

from course_lib.peers.launchers.programs import path
from course_lib.peers.launchers.run import Ran, run

OUT_OF_MEMORY = "the system does this when the host's memory is full (`dmesg` shows a line)"
LESS = "use fewer ranks per host, load weights on one rank or with zero.Init, or offload less"

# A sign in the text → cause and remedy; {0} and {1} are its groups.
SIGNS = (
    (r"No module named '?(deepspeed|accelerate|transformers|mpi4py)\b",
     "Python finds no module {0}", "{install}"),
    (r"(?:EADDRINUSE|[Aa]ddress already in use)",
     "another program uses the port at which the ranks should meet",
     "give a different port (torchrun --master-port or --standalone, deepspeed --master_port, "
     "accelerate --main_process_port 0), or end the processes left from an earlier run"),
    (r"file_baton\.py",
     "a rank waits for the lock of an extension without a time limit",
     "if nothing is being compiled, a killed build has left the lock; remove the file `lock` in "
     "the extension's folder (TORCH_EXTENSIONS_DIR, or ~/.cache/torch_extensions)"),
    (r"(?:[cg]\+\+|gcc|cc1plus): (?:command )?not found|No such file or directory: '[cg]\+\+'",
     "an extension had to be built, but there is no compiler",
     "install g++, prebuild it with DS_BUILD_…=1, or avoid it with torch_adam in the optimizer's "
      "params"),
    (r"No slot '(\d+)' specified on host '([^']+)'",
     "--include or --exclude names device {0} of {1}, but its slots end before that",
     "name an existing device; on a CPU DeepSpeed counts NUMA nodes unless LOCAL_SIZE sets a "
     "different number"),
    (r"Hostfile contains (?:a bad entry|multiple entries|)|Hostfile is empty",
     "DeepSpeed refuses the hostfile", "hostfile.load(path) shows the line and the reason"),
    (r"no GPU resources available",
     "DeepSpeed finds no accelerator", "on a CPU set DS_ACCELERATOR=cpu"),
    (r"(?:optim|model)_states\.pt",
     "a part of the checkpoint is missing where this rank looks for it",
     "start the nodes in the order in which they saved, or bring all parts to one folder; without "
     "a shared disk set checkpoint.use_node_local_storage and load by tag"),
    (r"environment variable (\w+) expected, but not set",
     "no launcher has set {0}", "start with a launcher, or set commands.five(0, 1, port)"),
)  # fmt: skip
INSTALL = {
    "deepspeed": "pip install 'course_lib[deepspeed]'",
    "accelerate": "pip install 'course_lib[huggingface]'",
    "transformers": "pip install 'course_lib[huggingface]'",
    "mpi4py": "DeepSpeed looks for MPI if one of RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, "
    "MASTER_PORT is not set, so start with a launcher, or set all five (commands.five)",
}
# Each launcher's report of the signal that ended a rank.
SIGNALS = (r"exitcode +: -(\d+)", r"failed \(exitcode: -(\d+)\)", r"return code = -(\d+)")
SIGNALS += (r"was ended by (SIG\w+)", r"task \d+: (Killed)", r"(oom.kill)")


FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


def killed(launcher: str, *, timeout: float = 60.0) -> Ran:
    """Run two ranks, the last of which is ended by SIGKILL, as if the host's memory were full."""
    world = 1 if launcher == "by hand" else 2
    return run(launcher, path("killed"), world=world, timeout=timeout)


def told(ran: Ran) -> str:
    """Describe in one line how the launcher ended, with cause and remedy."""
    ended = "had to be ended" if ran.timed_out else f"ended with {ran.returncode}"
    said = explain(ran.launcher, ran.returncode, ran.heard, timed_out=ran.timed_out)
    return f"{ran.launcher} {ended}. {said}"


def explain(launcher: str, returncode: int, stderr: str, *, timed_out: bool = False) -> str:
    """Explain in two sentences why a launcher ended, and the remedy."""
    for pattern, cause, remedy in SIGNS:
        if found := re.search(pattern, stderr):
            words = found.groups()
            install = INSTALL.get(words[0] or "", "") if words else ""
            return _sentence(cause.format(*words), remedy.format(*words, install=install))
    number = _signal(returncode, stderr)
    if number is None and returncode < 0 and launcher != "by hand":
        cause = f"the launcher {launcher} was itself ended by {signal.Signals(-returncode).name}"
        remedy = "look with ps for ranks that are still running, and end them"
        return _sentence(f"{cause}, and could not end its ranks", remedy)
    if number is None and returncode < 0:
        number = -returncode
    if number == signal.SIGKILL:
        cause = f"a rank was killed by SIGKILL, which leaves no traceback; {OUT_OF_MEMORY}"
        return _sentence(cause, LESS)
    if number is not None:
        who = "find its sender: a scheduler's time limit, a person, a different rank's failure"
        where = "run it with PYTHONFAULTHANDLER=1, which prints where each rank was"
        cause = f"a rank was ended by {signal.Signals(number).name}"
        return _sentence(cause, where if number in FAULTS else who)
    if timed_out:
        return _sentence(
            "the ranks had not ended at the time limit, and no output says why",
            "find out where each rank waits, by py-spy dump --pid or faulthandler in the program",
        )
    if returncode == 0 and launcher == "deepspeed":
        return (
            "deepspeed reports success. It also does so when its own deepspeed.launcher.launch was "
            "killed, so check the files that the program should have written."
        )
    if returncode == 0:
        return f"{launcher} reports success."
    return _sentence(
        f"the output does not say why {launcher} ended with {returncode}",
        "look for the first traceback of a rank above the launcher's own",
    )


def _sentence(cause: str, remedy: str) -> str:
    return f"{cause[0].upper()}{cause[1:]}. Remedy: {remedy}."


def _signal(returncode: int, text: str) -> int | None:
    """Find the signal that ended a rank first; the launcher sends SIGTERM to the others."""
    words = [word for pattern in SIGNALS for word in re.findall(pattern, text)]
    numbers = [number for number in map(_number, words) if number is not None]
    first = next((n for n in numbers if n != signal.SIGTERM), numbers[0] if numbers else None)
    # A shell and srun add 128 to a signal; DeepSpeed's -9 becomes 256 − 9.
    bases = (returncode - 128, 256 - returncode)
    of_code = next((base for base in bases if base in (signal.SIGKILL, *FAULTS)), None)
    return of_code if first is None else first


def _number(word: str) -> int | None:
    if word.isdigit():
        return int(word) if int(word) in list(signal.Signals) else None
    if word.startswith("SIG"):
        return getattr(signal, word, None)
    return signal.SIGKILL
