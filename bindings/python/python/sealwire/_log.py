"""What the library logs goes to `logging.getLogger("sealwire")`, from a thread of its own.

Never logs parameters, results, tokens or keys: the library does not hand them out.
"""

from __future__ import annotations

import atexit
import logging
import threading

from . import _core

_logger = logging.getLogger("sealwire")
_lock = threading.Lock()
_thread: threading.Thread | None = None

#: How often the logger's level is looked at.
_LOOKED_AT_S = 2.0


def start() -> None:
    """Begins to log, as the first client or service does."""
    global _thread
    _core.log_level(_level())
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_run, name="sealwire-log", daemon=True)
            _thread.start()


def _level() -> int:
    return max(1, min(_logger.getEffectiveLevel(), 255))


def _run() -> None:
    while True:
        try:
            taken = _core.log_lines(_LOOKED_AT_S)
        except Exception:
            return
        if taken is None:
            return
        _core.log_level(_level())
        lines, left_out = taken
        for level, target, text in lines:
            logging.getLogger(target.replace("::", ".")).log(level, "%s", text)
        if left_out:
            _logger.warning("%d lines were left out: they came faster than they were logged", left_out)


def _stop() -> None:
    # First the runtime: it may still log.
    _core.shutdown()
    if _thread is not None:
        try:
            _core.log_close()
        except Exception:
            return
        _thread.join(2)


atexit.register(_stop)
