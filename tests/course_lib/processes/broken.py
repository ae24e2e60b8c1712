"""Cannot be imported."""

raise ImportError("a library of its is missing")
