"""One file of mistakes for each part of course_lib; every file here holds a list MUTANTS."""
