"""A rank's key is in a file for a moment alone, and nobody needs that file after it."""

from __future__ import annotations

from course_lib.classroom.rank import RankApp


def test_a_rank_neither_looks_for_its_key_s_file_nor_writes_it_again(tmp_path):
    """ipykernel comes back to it after its sockets are open, when it may be gone already."""
    path = tmp_path / "rank-0.json"
    app = RankApp(connection_file=str(path), transport="ipc", ip=str(tmp_path / "rank-0-ipc"))
    app.write_connection_file()
    assert not path.exists()
    path.write_text("no JSON")
    app.write_connection_file()
    assert path.read_text() == "no JSON"
