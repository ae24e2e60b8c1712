"""`course lab`: a workspace on this machine alone, behind a token, ready to save whole files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import typer

from course_classroom.cli.base import ROOT
from course_classroom.cli.lab import lab_options
from course_classroom.notebook.unloaded import EXTENSION
from course_classroom.workspace import copying

FAR = 120.0  # seconds; a machine may be busy


@dataclass
class Lab:
    """A running `course lab` on a workspace of its own."""

    process: subprocess.Popen
    work: Path
    log: Path
    url: str = ""
    port: int = 0
    token: str = ""

    def wait(self) -> Lab:
        limit = time.monotonic() + FAR
        while time.monotonic() < limit and self.process.poll() is None:
            found = re.search(r"(http://127\.0\.0\.1:(\d+)/lab\S*)\?token=(\S+)", self.said())
            if found:
                self.url, self.port, self.token = found[1], int(found[2]), found[3]
                return self
            time.sleep(0.1)
        raise AssertionError(self.said())

    def said(self) -> str:
        return self.log.read_text()

    def api(self, path: str, method: str = "GET", content: dict | None = None) -> tuple[int, dict]:
        return ask(f"http://127.0.0.1:{self.port}/api/{path}", self.token, method, content)

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(timeout=FAR)


COMMAND = [sys.executable, "-m", "course_classroom.cli", "lab", "--no-browser"]


def variables(work: Path) -> dict[str, str]:
    return {**os.environ, "COURSE_WORK": f"{work.parent}/./{work.name}"}


def start(work: Path, log: Path, *options: str) -> Lab:
    with open(log, "w") as out:
        process = subprocess.Popen(
            [*COMMAND, *options],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=variables(work),
        )  # fmt: skip
    return Lab(process, work, log)


def until_its_end(work: Path, *options: str) -> tuple[int, str]:
    """The exit code, and what was said, of one that is not meant to go on."""
    done = subprocess.run(
        [*COMMAND, *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        env=variables(work), timeout=FAR, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def ask(
    url: str, token: str = "", method: str = "GET", content: dict | None = None
) -> tuple[int, dict]:
    headers = {"Authorization": f"token {token}"} if token else {}
    data = json.dumps(content).encode() if content is not None else None
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=FAR) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}")


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port on which another program listens already."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture(scope="module")
def labs(tmp_path_factory, taken) -> Iterator[tuple[Lab, Lab]]:
    """Two people on one machine, who start at once and want the same port, which is taken."""
    folder = tmp_path_factory.mktemp("labs")
    both = [
        start(folder / name, folder / f"{name}.log", f"--port={taken}") for name in ("ana", "ben")
    ]
    try:
        yield tuple(lab.wait() for lab in both)
    finally:
        for lab in both:
            lab.stop(signal.SIGTERM if lab.process.poll() is None else 0)


@pytest.fixture
def server(labs) -> Lab:
    return labs[0]


def test_it_opens_the_first_lesson_of_a_workspace_that_it_has_made(server):
    assert server.url.endswith("/lab/tree/notebooks/00_start_here.ipynb")
    assert server.said().startswith(f"Your own copies are in {server.work}: ")
    names = {one["name"] for one in server.api("contents/")[1]["content"]}
    assert names == {"notebooks", "exercises", *copying.LINKED}


def test_two_people_start_side_by_side(labs, taken):
    ana, ben = labs
    assert len({ana.port, ben.port, taken}) == 3
    for lab in labs:
        told = f"Port {taken} is taken, so this JupyterLab is at port {lab.port}. "
        assert told in lab.said()
        assert lab.api("contents/notebooks")[0] == 200
    assert ask(f"http://127.0.0.1:{ben.port}/api/contents", ana.token)[0] == 403


def test_a_second_one_on_the_same_workspace_is_refused(server):
    code, said = until_its_end(server.work, "--port=0")
    assert code == 1 and said.startswith(f"course: A JupyterLab is already open on {server.work} (")
    assert f"process {server.process.pid})" in said and server.token not in said
    assert "COURSE_WORK=~/work-NAME make lab" in said


def test_open_tabs_belong_to_the_workspace(server):
    url = f"http://127.0.0.1:{server.port}/lab/api/workspaces/mine"
    tabs = {"data": {"layout-restorer:data": {}}, "metadata": {"id": "mine"}}
    assert ask(url, server.token, "PUT", tabs)[0] == 204
    (kept,) = (server.work / ".course" / "layout").glob("*.jupyterlab-workspace")
    assert "layout-restorer" in kept.read_text()


def test_without_the_token_nothing_is_served(server):
    api = f"http://127.0.0.1:{server.port}/api/contents"
    assert ask(api)[0] == 403
    assert ask(api, "guessed")[0] == 403
    assert ask(api, server.token)[0] == 200


def test_it_listens_on_loopback_only(labs):
    for lab in labs:
        process = psutil.Process(lab.process.pid)
        listening = [
            c.laddr.ip
            for p in [process, *process.children(recursive=True)]
            for c in p.net_connections("inet")
            if c.status == psutil.CONN_LISTEN
        ]
        assert listening and set(listening) == {"127.0.0.1"}


def test_what_runs_in_it_knows_its_workspace_and_the_command(server):
    before = psutil.Process(server.process.pid).children()
    status, kernel = server.api("kernels", "POST", {"name": "python3"})
    assert status == 201
    (started,) = [p for p in psutil.Process(server.process.pid).children() if p not in before]
    inside = started.environ()
    assert f"--InteractiveShellApp.extra_extensions={EXTENSION}" in started.cmdline()
    server.api(f"kernels/{kernel['id']}", "DELETE")
    assert inside["COURSE_WORK"] == str(server.work), "whole, however it was written"
    assert inside["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    done = subprocess.run(
        ["course", "reset", "nonsense"],
        env=inside, cwd=server.work, capture_output=True, text=True, timeout=FAR, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "00  notebooks/00_start_here.ipynb" in done.stderr


@pytest.mark.parametrize("page", ["course_lib/ranks.py", "docs/glossary.md"])
def test_the_library_and_the_pages_can_be_read_and_not_changed(server, page):
    folder, name = page.split("/")
    path = f"contents/{page}"
    before = (ROOT / page).read_text()
    status, model = server.api(path)
    assert status == 200 and model["content"] == before and model["writable"] is False
    model["content"] = "broken"
    for status, told in (
        server.api(path, "PUT", {"type": "file", "format": "text", "content": "broken"}),
        server.api(path, "DELETE"),
        server.api(f"contents/{folder}", "DELETE"),
        server.api(path, "PATCH", {"path": name}),
        server.api(f"contents/{folder}", "POST", {"copy_from": page}),
        server.api(f"{path}/checkpoints", "POST"),
    ):
        assert status == 403 and "is read-only here" in told["message"]
    assert (ROOT / page).read_text() == before
    copy = server.api("contents/", "POST", {"copy_from": page})
    assert copy[0] == 201 and (server.work / copy[1]["path"]).read_text() == before


def test_a_page_opens_as_it_reads_and_not_as_its_source(server):
    url = f"http://127.0.0.1:{server.port}/lab/api/settings/"
    status, told = ask(url + "@jupyterlab/docmanager-extension:plugin", server.token)
    assert status == 200
    viewers = told["schema"]["properties"]["defaultViewers"]["default"]
    assert viewers == {"markdown": "Markdown Preview"}


def test_a_port_that_is_taken_between_looking_and_binding(taken):
    """As it happens when twenty people start together."""
    from tornado.httpserver import HTTPServer
    from tornado.web import Application

    from course_classroom.workspace.server import CourseServer

    async def bind() -> tuple[bool, int]:
        server = CourseServer(ip="127.0.0.1", port=taken)
        server._http_server = HTTPServer(Application())
        try:
            return server._bind_http_server_tcp(), server.port
        finally:
            server._http_server.stop()

    bound, port = asyncio.run(bind())
    assert bound and port != taken


def test_prepare_makes_the_workspace_and_starts_nothing(tmp_path):
    work = tmp_path / "w"
    code, said = until_its_end(work, "--prepare")
    assert code == 0 and said.startswith(f"Your own copies are in {work}: ")
    assert (work / "notebooks" / "00_start_here.ipynb").exists()


OPEN = "would run without a token", "leave its token unchanged"
REACHED = "where other machines reach it", "ssh -L 8888:127.0.0.1:8888"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--ServerApp.token", ""], OPEN),  # as a shell hands over --ServerApp.token ""
        pytest.param(["--config=FILE"], OPEN, marks=pytest.mark.slow),
        (["--ip", "0.0.0.0"], REACHED),
    ],
)
def test_one_that_would_stand_open_is_refused(tmp_path, options, told):
    file = tmp_path / "open.py"
    file.write_text("c.IdentityProvider.token = ''\n")
    options = [option.replace("FILE", str(file)) for option in options]
    code, said = until_its_end(tmp_path / "w", "--port=0", *options)
    assert code == 1 and all(words in said for words in told), said
    assert "http://" not in said.replace("http://127.0.0.1:8888", "")


@pytest.mark.slow
def test_a_password_of_the_users_comes_beside_the_token(tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config" / "jupyter_server_config.json").write_text(
        json.dumps({"PasswordIdentityProvider": {"hashed_password": "argon2:$nobody's"}})
    )
    lab = start(tmp_path / "w", tmp_path / "log", "--port=0").wait()
    try:
        assert lab.token and lab.api("contents/notebooks")[0] == 200
        assert ask(f"http://127.0.0.1:{lab.port}/api/contents")[0] == 403
    finally:
        lab.stop()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--ServerApp.allow_unauthenticated_access=True", "would open this machine to everyone"),
        ("--IdentityProvider.token=", "would open this machine to everyone"),
        ("--ServerApp.root_dir=/", "COURSE_WORK=/another/folder make lab"),
        ("--notebook-dir=/", "COURSE_WORK=/another/folder make lab"),
    ],
)
def test_options_that_are_refused(option, told):
    with pytest.raises(typer.BadParameter, match=told):
        lab_options([option])
    assert lab_options(["--port=9"])[-1] == "--port=9"
