"""Values between the notebook and its ranks: packed on one side, unpacked on the other.

They travel inside signed messages over the user's own sockets, and are never read from a file.
"""

from __future__ import annotations

import base64
import pickle

import torch


def take(text: str, namespace: dict) -> None:
    namespace.update(pickle.loads(base64.b64decode(text)))


def give(value) -> str:
    """The value as text; what lives on a GPU comes to the host, what has a history loses it."""
    return base64.b64encode(pickle.dumps(_plain(value))).decode()


def _plain(value):
    if isinstance(value, torch.Tensor):
        # A view would bring its whole storage along.
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value
