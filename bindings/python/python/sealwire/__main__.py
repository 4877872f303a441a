"""`python -m sealwire`: the command, if this installation has it.

Never runs a program that another package has put on PATH.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig


def command() -> pathlib.Path | None:
    """Where the wheel has put the command."""
    name = "sealwire" + (sysconfig.get_config_var("EXE") or "")
    schemes = [None, sysconfig.get_preferred_scheme("user")]
    folders = [
        sysconfig.get_path("scripts") if scheme is None else sysconfig.get_path("scripts", scheme) for scheme in schemes
    ]
    places = [pathlib.Path(folder, name) for folder in folders if folder]
    return next((place for place in places if place.is_file()), None)


def main() -> None:
    """Becomes the command."""
    found = command()
    if found is None:
        sys.exit(
            "this installation of sealwire has only the library, not the command: install a wheel for this platform "
            "(`pip install --force-reinstall sealwire`), or build it with `cargo install sealwire-cli`"
        )
    arguments = [str(found), *sys.argv[1:]]
    if os.name == "nt":
        sys.exit(subprocess.run(arguments).returncode)
    os.execv(found, arguments)


if __name__ == "__main__":
    main()
