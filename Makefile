# Every target works alone on a fresh clone: it first makes .venv (or checks COURSE_VENV) and says what it does.
# The work is in tools/bootstrap/, standard library only; this file finds a Python to run it.
#
#   make lab       JupyterLab on the first lesson       LAB_ARGS="--port 9000" passes options through
#   make test      ruff, pytest, notebooks at world 2   PYTEST_ARGS="-k ledger" narrows the pytest part
#   make help      the rest, and every variable

.DEFAULT_GOAL := help
.PHONY: help setup lab test test-all mutants notebooks exercises bench accept-gpu clean

unexport PYTHONSAFEPATH PYTHONPATH PYTHONHOME
export PYTHON COURSE_VENV COURSE_WORK HASHES TORCH_INDEX_URL LAB_ARGS PYTEST_ARGS BENCH_ARGS ACCEPT_ARGS

help setup lab test test-all mutants notebooks exercises bench accept-gpu clean:
	@for candidate in "$$PYTHON" python3 python3.13 python3.12 python3.11 python3.10 python; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then \
	    exec "$$candidate" -m tools.bootstrap $@; \
	  fi; \
	done; \
	echo 'No Python was found on this PATH (looked for python3 and python3.10 to python3.13).' >&2; \
	echo 'Remedy: install Python 3.10 to 3.13 (Debian, Ubuntu: apt install python3 python3-venv), or PYTHON=/path/to/python make $@' >&2; \
	exit 1
