"""`course lab`: JupyterLab on this machine alone, behind a token, ready to save whole files."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
import pytest
import typer

from course_lib.cli.lab import lab_options


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("lab") / "log"
    with open(log, "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "course_lib.cli", "lab", "--no-browser", "--port=0"],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    url, limit = None, time.monotonic() + 60
    while url is None and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.2)
        url = re.search(r"http://127\.0\.0\.1:(\d+)/lab\S*\?token=(\w+)", log.read_text())
    assert url, log.read_text()
    yield process, int(url.group(1)), url.group(2), url.group(0)
    process.terminate()
    process.wait(timeout=20)


def status(url: str, **headers: str) -> int:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_it_opens_on_the_first_lesson(server):
    assert "/lab/tree/notebooks/01_" in server[3]


def test_without_the_token_nothing_is_served(server):
    _, port, token, _ = server
    api = f"http://127.0.0.1:{port}/api/contents"
    assert status(api) == 403
    assert status(f"{api}?token=guessed") == 403
    assert status(api, Authorization=f"token {token}") == 200


def test_it_listens_on_loopback_only(server):
    process = psutil.Process(server[0].pid)
    listening = [
        c.laddr.ip
        for p in [process, *process.children(recursive=True)]
        for c in p.net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert listening and set(listening) == {"127.0.0.1"}


def test_options_that_would_open_the_machine_are_refused():
    for option in ("--ServerApp.allow_unauthenticated_access=True", "--IdentityProvider.token="):
        with pytest.raises(typer.BadParameter, match="would open this machine to everybody"):
            lab_options([option])
    assert lab_options(["--port=9"])[-1] == "--port=9"
