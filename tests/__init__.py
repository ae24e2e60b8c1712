"""The tests of course_lib: they mirror its files, and each has a mistake in mutants.py to catch."""
