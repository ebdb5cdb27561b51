"""Decide which form of headway is built; everything else is in pyproject.toml.

A module is compiled when a `.pxd` of the same name lies beside its `.py`, or when it is a `.pyx`: that one calls a C
library, and there is no interpreted form of it. The compiled form is optional but
never partial: without a C compiler, without Cython or with HEADWAY_NO_EXT=1 the package is pure Python, and one
line says so. An error in our own code is not hidden: where the tools are there, a module that does not compile
fails the build.
"""

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
JOBS = os.cpu_count() or 1
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,  # annotations are for type checkers; C types come from the .pxd alone
    "binding": False,  # plain C methods: faster to call than Cython's function objects
    "embedsignature": True,  # and help() and inspect.signature() still know the arguments
    "embedsignature.format": "clinic",
}


def compiled_modules(source=SOURCE):
    """Map each module to compile to its file: {"headway.core.bucket": Path("src/headway/core/bucket.py")}."""
    pxds = [pxd for pxd in sorted(source.glob("headway/**/*.pxd")) if pxd.stem != "__init__"]
    files = [pxd.with_suffix(".py") for pxd in pxds] + sorted(source.glob("headway/**/*.pyx"))
    return {".".join(file.relative_to(source).with_suffix("").parts): file for file in files}


def reason_for_pure():
    """Say why the extensions cannot be built, or nothing when they can."""
    if os.environ.get("HEADWAY_NO_EXT", "0") not in ("", "0"):
        return "HEADWAY_NO_EXT is set"
    try:
        import Cython  # noqa: F401
    except ImportError:
        return "Cython is not installed"
    return None if can_compile() else "no working C compiler (or no Python.h)"


def can_compile():
    """Try the compiler on the smallest extension there is."""
    from distutils.ccompiler import new_compiler
    from distutils.errors import CCompilerError, DistutilsError
    from distutils.sysconfig import customize_compiler, get_python_inc

    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text("#include <Python.h>\nint probe(void) { return 0; }\n")
        compiler = new_compiler()
        try:
            customize_compiler(compiler)
            objects = compiler.compile([str(probe)], output_dir=folder, include_dirs=[get_python_inc()])
            compiler.link_shared_object(objects, str(Path(folder, "probe.so")))
        except (CCompilerError, DistutilsError, OSError):
            return False
    return True


def extensions():
    """The extensions to build; none for the pure form."""
    modules = compiled_modules()
    reason = reason_for_pure() if modules else "no module is to be compiled"
    if reason:
        print(f"headway: pure Python form, {reason}", file=sys.stderr)
        return []
    from Cython.Build import cythonize

    # Python's own flags ask for debug information, which takes a third of the time.
    flags = [] if sys.platform == "win32" else ["-O2", "-g0"]
    return cythonize(
        [Extension(name, [file.as_posix()], extra_compile_args=flags) for name, file in modules.items()],
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
        include_path=[str(SOURCE)],
        nthreads=JOBS if JOBS > 1 else 0,
        quiet=True,
    )


class BuildExtensions(build_ext):
    """Builds in parallel, and in place leaves no binary behind that would shadow a newer `.py`."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def run(self):
        if self.inplace:
            names = [extension.name for extension in self.extensions or ()]
            wanted = {Path(self.get_ext_fullpath(name)).resolve() for name in names}
            for binary in SOURCE.resolve().glob(f"headway/**/*{self.get_ext_filename('')}"):
                if binary not in wanted:
                    binary.unlink()
        super().run()


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExtensions})
