"""nbgrader's stock commands on this folder: `nbgrader generate_assignment 01_collectives`, …

They write to release/, autograded/, feedback/ and gradebook.db, and leave exercises/ as it is.
"""

import os
import sys
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)
sys.path.insert(0, _HERE)  # course_lib need not be installed
# The same for the kernels that autograde starts: the checks are those of this folder, whichever
# course_lib the environment holds.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_HERE, os.environ.get("PYTHONPATH")]))
# nbgrader starts alembic by its name: it lies beside the Python that runs this.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
from course_classroom.notebook.release import configuration  # noqa: E402

c = get_config()  # noqa: F821  (given by whoever reads this file)
c.merge(configuration())
