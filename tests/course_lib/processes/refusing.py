"""After its import no process can be forked, as where a limit of processes is reached."""

import errno
import os


def _refuse():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


os.fork = _refuse
