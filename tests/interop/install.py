#!/usr/bin/env python3
"""Makes the Python environment of the tests: python3 install.py FOLDER [REQUIREMENTS], with FOLDER inside the build folder.

Installs once what requirements.txt, or another file, pins by hash, and prints nothing on success. Never leaves an incomplete
environment that looks complete.
"""

import fcntl
import pathlib
import subprocess
import sys


def main():
    folder = pathlib.Path(sys.argv[1])
    requirements = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).with_name("requirements.txt")
    wanted = requirements.read_text()
    python, installed = folder / "bin/python", folder / "installed.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several test programs may run at the same time, besides the steps of CI.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Written last, so that an interrupted installation is not taken for a complete one.
        if installed.exists() and installed.read_text() == wanted:
            return
        run(sys.executable, "-m", "venv", "--clear", folder)
        pip = [python, "-m", "pip"]
        # The list is complete, so nothing is resolved: for requested extras such as `pydantic[email]`, pip looks beyond
        # the pins, and fails as soon as there is a newer version. Building would bring in packages that no hash covers.
        pinned = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", requirements]
        run(*pip, "install", "--quiet", "--disable-pip-version-check", *pinned)
        run(*pip, "check")
        installed.write_text(wanted)


def run(*command):
    """Runs the command to its end; if it failed, exits with the reason on one line."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:]
        sys.exit(f"`{' '.join(map(str, command[:4]))}` failed ({done.returncode}): {''.join(last)}")


main()
