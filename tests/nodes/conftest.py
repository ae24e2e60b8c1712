"""Two hosts, each with the program imported, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from course_lib.nodes.on_hosts import OnHosts
from course_lib.nodes.two_hosts import NoHosts, TwoHosts


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHosts]:
    try:
        with TwoHosts() as hosts:
            yield OnHosts(hosts, tmp_path_factory.mktemp("hosts"))
    except NoHosts as reason:
        pytest.skip(str(reason))
