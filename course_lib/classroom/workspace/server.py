"""JupyterLab's server, with a port that is its own before anybody is told about it.

The stock one looks for a free port and takes it later: of twenty people who start together, two may
find the same. No lesson derives it.
"""

from __future__ import annotations

import asyncio

from jupyter_server.serverapp import ServerApp
from jupyterlab.labapp import LabApp

TRIES = 20


class CourseServer(ServerApp):
    """Where the port that was found has been taken meanwhile, it looks for the next."""

    wanted = 0  # the port that was asked for, or the default

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
    # It binds in its loop, but prints its address before the loop runs: let it bind first.
    server.io_loop.run_sync(lambda: asyncio.sleep(0))
    return server
