"""Removal of private data from a report: names of people and machines, and tokens.

It is applied once, to every text of the finished report, so checks need not remove such data.
"""

from __future__ import annotations

import getpass
import re
import socket
from dataclasses import dataclass
from pathlib import Path

_SECRETS = [
    (
        re.compile(r"(?i)\b(\w*(?:token|password|passwd|secret|api_?key))\s*([=:])\s*[^\s&,;]+"),
        r"\1\2***",
    ),
    (re.compile(r"//[^/@\s]+@"), "//***@"),  # https://user:password@host
]


@dataclass(frozen=True)
class Private:
    """Names to remove: the home folder, the user's name, the machine's names."""

    home: str
    user: str
    hosts: tuple[str, ...]

    def without(self, text: str) -> str:
        """Replace the home folder with ~, the user with <user> and the machine with <host>."""
        if len(self.home) > 1:
            text = re.sub(rf"{re.escape(self.home)}(?![\w.-])", "~", text)
        if self.user:
            # In a path, in user@host or in a listing; in a sentence, `root` is a word.
            name = re.escape(self.user)
            text = re.sub(rf"(?<=/){name}(?![\w.-])|(?<![\w.-]){name}(?=@)", "<user>", text)
        for host in self.hosts:
            text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "<host>", text)
        for pattern, instead in _SECRETS:
            text = pattern.sub(instead, text)
        return text


def of_this_machine() -> Private:
    """Return the names of this user and this machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = ""
    name = socket.gethostname()
    hosts = {name, name.split(".")[0]} - {"", "localhost"}
    return Private(str(Path.home()), user, tuple(sorted(hosts, key=len, reverse=True)))


def scrubbed(value: object, private: Private) -> object:
    """Return a copy of a JSON value with `without` applied to every string in it."""
    if isinstance(value, str):
        return private.without(value)
    if isinstance(value, list | tuple):
        return [scrubbed(one, private) for one in value]
    if isinstance(value, dict):
        return {key: scrubbed(one, private) for key, one in value.items()}
    return value
