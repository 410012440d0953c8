"""The way in from a shell: `flexinfer ...` and `python -m flexinfer ...`."""

from __future__ import annotations

import gc
import signal
import sys


def main() -> None:
    """Run the command line and exit with its code; an interruption of the imports is one too."""
    try:
        from flexinfer.cli.main import app

        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        _end_at_once()
        _leave_the_heap()
        # where exec was interrupted CPython would end by the signal, whatever code is asked for;
        # it forgets that with the next exec
        exec("")


def _end_at_once() -> None:
    """Let Ctrl-C end the process without a word, where it is ignored nowhere.

    What is left is the interpreter's own end, which takes a while with torch: a KeyboardInterrupt
    would be a traceback out of whichever library clears up just then.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave_the_heap() -> None:
    """Collect garbage once more, and keep the interpreter's end from going through the rest.

    It would look at all that torch and transformers are made of, three times over.
    """
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
