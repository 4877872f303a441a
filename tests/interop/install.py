#!/usr/bin/env python3
"""Makes the Python environment of the tests: python3 install.py FOLDER, below the folder of all builds.

Installs what requirements.txt pins by hash, once, and prints nothing then. Never leaves one that looks whole and is not.
"""

import fcntl
import pathlib
import subprocess
import sys


def main():
    folder = pathlib.Path(sys.argv[1])
    requirements = pathlib.Path(__file__).with_name("requirements.txt")
    wanted = requirements.read_text()
    python, installed = folder / "bin/python", folder / "installed.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Tests run side by side, in several programs, and beside what CI does.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Written last, so an installation that broke off is not taken for a whole one.
        if installed.exists() and installed.read_text() == wanted:
            return
        run(sys.executable, "-m", "venv", "--clear", folder)
        pip = [python, "-m", "pip"]
        # The list is whole, so nothing is resolved: pip looks for extras that are asked for, as `pydantic[email]`, beyond what
        # is pinned, and ends as soon as there is a newer version. What is built would bring what no hash is about.
        pinned = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", requirements]
        run(*pip, "install", "--quiet", "--disable-pip-version-check", *pinned)
        run(*pip, "check")
        installed.write_text(wanted)


def run(*command):
    """Runs to the end; what went wrong, on one line, if it did."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:]
        sys.exit(f"`{' '.join(map(str, command[:4]))}` failed ({done.returncode}): {''.join(last)}")


main()
