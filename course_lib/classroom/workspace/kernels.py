"""Kernels of `course lab`: Python's own, and each knows from its start what `%%ranks` needs.

A kernel that was just started has loaded nothing, so `%%ranks` would be unknown to it. No lesson
derives it.
"""

from __future__ import annotations

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from course_lib.classroom.unloaded import EXTENSION


class LearnersKernels(KernelSpecManager):
    """Jupyter's kernels as they are installed; those of IPython load one extension more."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        spec = super().get_kernel_spec(kernel_name)
        if "ipykernel_launcher" in spec.argv:
            spec.argv = [*spec.argv, f"--InteractiveShellApp.extra_extensions={EXTENSION}"]
        return spec
