"""The `course` command, started as `python -m course_classroom.cli`."""

from course_classroom.cli import main

if __name__ == "__main__":
    main()
