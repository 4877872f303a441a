"""Runs a program on a terminal of 100 by 24 characters: screen.py PROGRAM ARGUMENT...

Standard input is JSON: a list of [text, keys]. Once the text is on the screen, the keys are typed, and so on. What the program has written, what
was on the screen each time, and how it ended goes to standard output.
"""

import codecs
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

PATIENCE_S = 120
ROWS, COLUMNS = 24, 100
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


class Screen:
    """What is on the screen, as far as programs that place each text need it."""

    def __init__(self):
        self.rest, self.decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        self.clear()

    def clear(self):
        self.cells, self.row, self.column = [[" "] * COLUMNS for _ in range(ROWS)], 0, 0

    def write(self, data):
        text, at = self.rest + self.decoder.decode(data), 0
        while at < len(text):
            if text[at] == "\x1b":
                sequence = SEQUENCE.match(text, at)
                if not sequence:
                    break
                self.obey(*sequence.groups())
                at = sequence.end()
            else:
                self.put(text[at])
                at += 1
        self.rest = text[at:]

    def obey(self, parameters, command):
        if command == "H":
            row, column = (parameters or "1;1").split(";")
            self.row, self.column = int(row) - 1, int(column) - 1
        elif command == "J" or parameters == "?1049":
            self.clear()

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
        elif self.row < ROWS and self.column < COLUMNS:
            self.cells[self.row][self.column] = character
            self.column += 1

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


def main():
    steps, screens = json.load(sys.stdin), []
    terminal, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    before = termios.tcgetattr(program)
    own = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    streams = {"stdin": program, "stdout": program, "stderr": program}
    running = subprocess.Popen(sys.argv[1:], **streams, start_new_session=True, preexec_fn=own)
    written, screen, until = b"", Screen(), time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            part = os.read(terminal, 65536)
            written += part
            screen.write(part)
            if steps and steps[0][0] in screen.text():
                screens.append(screen.text())
                os.write(terminal, steps.pop(0)[1].encode())
        elif running.poll() is not None:
            break
    running.kill()
    print(json.dumps({
        "written": written.decode(errors="replace"),
        "screens": screens,
        "missed": steps,
        "screen": screen.text(),
        "code": running.wait(),
        "is_as_before": termios.tcgetattr(program) == before,
    }))


main()
