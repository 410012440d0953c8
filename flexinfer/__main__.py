"""The way in from a shell: `flexinfer ...` and `python -m flexinfer ...`."""

from __future__ import annotations

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
        # where exec was interrupted CPython would end by the signal, whatever code is asked for;
        # it forgets that with the next exec
        exec("")


if __name__ == "__main__":
    main()
