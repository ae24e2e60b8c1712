"""JupyterLab's server, which refuses settings that admit other users and reserves its port.

The standard server finds a free port but binds it later, so two people who start together may find
the same port. This server's kernels know `%%ranks` from their start.
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
    """Jupyter's installed kernels; IPython kernels load an additional extension."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        spec = super().get_kernel_spec(kernel_name)
        if "ipykernel_launcher" in spec.argv:
            spec.argv = [*spec.argv, f"--InteractiveShellApp.extra_extensions={EXTENSION}"]
        return spec


class CourseServer(ServerApp):
    """A server that tries the next port if a different process has taken its port."""

    wanted = 0  # the requested port, or the default

    @default("static_custom_path")
    def _default_static_custom_path(self) -> list[str]:
        """Return the search path of custom.css; the course's file dims figures in a dark theme."""
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
    """Return a JupyterLab server that listens but does not serve requests yet."""
    LabApp.serverapp_class = CourseServer
    server = LabApp.initialize_server(argv=options)
    give_token(server)
    check_closed(server)
    # It binds in its loop, but prints its address before the loop runs, so let it bind first.
    server.io_loop.run_sync(lambda: asyncio.sleep(0))
    return server


def give_token(server: ServerApp) -> None:
    """Add a token when the user has a password, because Jupyter would omit it."""
    provider = server.identity_provider
    if not provider.token and getattr(provider, "hashed_password", ""):
        provider.token, provider.token_generated = secrets.token_hex(24), True
        server.web_app.settings["token"] = provider.token


def check_closed(server: ServerApp) -> None:
    """Refuse a server that other people could use. This checks the resolved settings, not the
    options, because the user's files and environment variables also apply."""
    if not server.identity_provider.token:
        raise Refused(
            "this JupyterLab would run without a token, so every user of this machine could run "
            "programs as you.",
            "leave its token unchanged. An option of this command or one of your files (`jupyter "
            "--paths` lists the folders) makes it empty",
        )
    if not server.sock and server.ip not in LOOPBACK:
        raise Refused(
            f"this JupyterLab would listen at {server.ip or 'all addresses'}, where other machines "
            "reach it.",
            "leave its address unchanged, and reach it from another machine through a tunnel: ssh "
            "-L 8888:127.0.0.1:8888 THIS_MACHINE",
        )
