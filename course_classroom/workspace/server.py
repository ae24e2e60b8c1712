"""JupyterLab's server: refused where it would stand open, and with a port that is its own.

The stock one looks for a free port and takes it later: of twenty people who start together, two may
find the same. Its kernels know from their start what `%%ranks` needs.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_server.serverapp import ServerApp
from jupyterlab.labapp import LabApp
from traitlets import default

from course_classroom.notebook.unloaded import EXTENSION
from course_classroom.workspace.place import Refused

STYLE = Path(__file__).resolve().parent / "jupyter" / "style"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TRIES = 20


class LearnersKernels(KernelSpecManager):
    """Jupyter's kernels as they are installed; those of IPython load one extension more."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        spec = super().get_kernel_spec(kernel_name)
        if "ipykernel_launcher" in spec.argv:
            spec.argv = [*spec.argv, f"--InteractiveShellApp.extra_extensions={EXTENSION}"]
        return spec


class CourseServer(ServerApp):
    """Where the port that was found has been taken meanwhile, it looks for the next."""

    wanted = 0  # the port that was asked for, or the default

    @default("static_custom_path")
    def _default_static_custom_path(self) -> list[str]:
        """Where custom.css is sought: ours first, which dims figures in a dark theme."""
        return [str(STYLE), *super()._default_static_custom_path()]

    def _find_http_port(self) -> None:
        self.wanted = self.wanted or self.port
        super()._find_http_port()

    def _bind_http_server_tcp(self) -> bool:
        for _ in range(TRIES):
            if super()._bind_http_server_tcp():
                return True
            if not self.port_retries:
                break
            self._find_http_port()
        return False


def ready(options: list[str]) -> CourseServer:
    """A JupyterLab that listens and has not begun to serve."""
    LabApp.serverapp_class = CourseServer
    server = LabApp.initialize_server(argv=options)
    give_token(server)
    check_closed(server)
    # It binds in its loop, but prints its address before the loop runs: let it bind first.
    server.io_loop.run_sync(lambda: asyncio.sleep(0))
    return server


def give_token(server: ServerApp) -> None:
    """A token beside a password of the user's: Jupyter would leave it out."""
    provider = server.identity_provider
    if not provider.token and getattr(provider, "hashed_password", ""):
        provider.token, provider.token_generated = secrets.token_hex(24), True
        server.web_app.settings["token"] = provider.token


def check_closed(server: ServerApp) -> None:
    """Refuse a server that strangers could use. What it has resolved counts, and not the text of
    the options: files and variables of the user's have their say too."""
    if not server.identity_provider.token:
        raise Refused(
            "this JupyterLab would run without a token: everybody on this machine could run "
            "programs as you.",
            "leave its token as it is. An option of this command or a file of yours "
            "(`jupyter --paths` lists the folders) makes it empty",
        )
    if not server.sock and server.ip not in LOOPBACK:
        raise Refused(
            f"this JupyterLab would listen at {server.ip or 'all addresses'}, where other machines "
            "reach it.",
            "leave its address as it is, and reach it from another machine through a tunnel: "
            "ssh -L 8888:127.0.0.1:8888 THIS_MACHINE",
        )
