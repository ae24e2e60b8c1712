"""`python -m course_classroom.cli` is the `course` command."""

from course_classroom.cli import main

if __name__ == "__main__":
    main()
