"""The commands that README.md, CONTRIBUTING.md and docs/ show, and a fresh clone to run them in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_classroom.cli.base import ROOT
from tests.house.test_packaging import project
from tests.support.mutation import LEFT_OUT

PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{x.name}" for x in ROOT.glob("docs/*.md")))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN = re.compile(
    r"(\w+=\S+ )*(sudo )?(course|make|\.venv/bin/\w+|python\d?|torchrun|srun|conda) [^…]+"
)
NAME_ALONE = re.compile(r"(course|make) [\w-]+")
# Blocks of a page that are no commands, by their first line.
FILES = {
    "export COURSE_VENV=/srv/course/.venv     # checked, never changed": "/etc/profile.d/course.sh",
    "#!/bin/sh": "a hub's start script",
    'c.Spawner.cmd = ["/srv/course/hub-start"]': "a hub's configuration",
}

# A model's config.json.
LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1376,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """One command of a page. `named`: in a sentence, as the name of a command, without arguments;
    `bare`: in a block of a page that has not put .venv/bin on the PATH."""

    page: str
    text: str
    named: bool = False
    bare: bool = False
    output: str = ""


def shown() -> Iterator[Shown]:
    """Every command of every page, in order."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        parts = FENCED.split(text)
        for sentences, kind, block in zip(parts[::3], parts[1::3], [*parts[2::3]], strict=False):
            yield from _in_sentences(page, sentences)
            if kind == "console":
                command, _, output = block.partition("\n")
                yield Shown(page, command.removeprefix("$ "), output=output)
            elif kind == "" and block.partition("\n")[0] not in FILES:
                for line in _joined(block).splitlines():
                    command = re.sub(r"\s+#\s.*", "", line).strip()
                    yield Shown(page, command, bare=not page.startswith("docs/"))
        yield from _in_sentences(page, parts[-1])


def _joined(block: str) -> str:
    """A block with each command on one line: continued ones, and loops."""
    block = re.sub(r"\\\n\s*", "", block)

    def in_a_line(loop: re.Match) -> str:
        return f"do {'; '.join(x.strip() for x in loop[1].splitlines())}; done"

    return re.sub(r"\bdo\n(.*?)\ndone", in_a_line, block, flags=re.DOTALL)


def _in_sentences(page: str, text: str) -> Iterator[Shown]:
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if OWN.fullmatch(quoted):
            yield Shown(page, quoted, named=bool(NAME_ALONE.fullmatch(quoted)))


def clone(folder: Path) -> Path:
    """The repository as a fresh clone has it, with what is not committed yet; `.venv` there runs
    the clone's own code with the packages of this interpreter's environment."""

    def git(*words: str, **more) -> bytes:
        return subprocess.run(["git", *words], check=True, capture_output=True, **more).stdout

    if not (ROOT / ".git").exists():  # a copy without history is a fresh one
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
        _environment(folder)
        return folder
    git("clone", "-q", "--shared", str(ROOT), str(folder))
    changes = git("-C", str(ROOT), "diff", "--binary", "HEAD")
    if changes:
        git("-C", str(folder), "apply", "-", input=changes)
    for name in git("-C", str(ROOT), "ls-files", "-o", "--exclude-standard", "-z").split(b"\0"):
        if name:
            target = folder / os.fsdecode(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / os.fsdecode(name), target)
    _environment(folder)
    return folder


def _environment(folder: Path) -> None:
    venv = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    # As an editable installation has it: the packages are found, and nothing else of the clone.
    (venv / "found").mkdir()
    for package in ("course_lib", "course_classroom", "course_lessons"):
        (venv / "found" / package).symlink_to(folder / package)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = [str(venv / "found"), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
    (venv / "lib" / python / "site-packages" / "clone.pth").write_text("\n".join(paths) + "\n")
    programs = project()["scripts"] | {"torchrun": "torch.distributed.run:main"}
    for name, target in programs.items():
        module, _, function = target.partition(":")
        program = venv / "bin" / name
        program.write_text(
            f"#!{venv}/bin/python\nimport sys\nfrom {module} import {function}\n"
            f"sys.exit({function}())\n"
        )
        program.chmod(0o755)


def run(command: Shown, text: str, folder: Path, home: Path, seconds: float):
    """The command as a reader's shell runs it, in the clone."""
    outside = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONSAFEPATH", "COURSE_WORK", "PYTEST_CURRENT_TEST")
    env = {name: value for name, value in os.environ.items() if name not in outside}
    here = Path(sys.executable).parent
    path = [x for x in env["PATH"].split(os.pathsep) if Path(x) != here]
    path = path if command.bare else [f"{folder}/.venv/bin", *path]
    env |= {"HOME": str(home), "PATH": os.pathsep.join(path), "COLUMNS": "120"}
    env |= {"COURSE_RUNTIME_DIR": str(home / "r")}  # no other person's ranks are seen, or stopped
    if os.geteuid() == 0:
        env["COURSE_SANDBOX"] = "1"  # else `course grade` refuses
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, env=env, capture_output=True, text=True,
        timeout=seconds, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
