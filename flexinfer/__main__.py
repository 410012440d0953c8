"""The way in from a shell: `flexinfer ...` and `python -m flexinfer ...`."""

from __future__ import annotations

from flexinfer.cli.main import app


def main() -> None:
    """Run the command line and exit with its code."""
    app()


if __name__ == "__main__":
    main()
