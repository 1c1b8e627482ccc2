"""The command line: the same engine without a browser.

``python -m core devices|train|runs|show|stop|delete|pause|resume|extend|evaluate|export|diagnose|lint``,
``backup|restore|health`` and ``launcher`` take ``--json`` and ``--home``. Exit code 0: the run completed, or
was stopped or paused; 1: it failed or diverged, its status or the room that is left does not allow what was
asked, ``lint`` found a mistake, or ``health`` a problem; 2: the configuration, or the file to read, is
invalid; 130: Ctrl-C ended the command itself.
"""

from __future__ import annotations

import os
import signal

from core.errors import INTERRUPTED


def _leave(*_: object) -> None:
    os.write(2, b"Interrupted before anything was begun.\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    # The imports below take a second or two, in which Ctrl-C would end in a traceback.
    signal.signal(signal.SIGINT, _leave)

from core.commands import main

if __name__ == "__main__":
    main(prog_name="python -m core")
