"""`python -m course_lib.cli` is the `course` command."""

from course_lib.cli import main

if __name__ == "__main__":
    main()
