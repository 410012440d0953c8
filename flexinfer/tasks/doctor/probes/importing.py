"""Import a module, then take names from it. Arguments: MODULE [NAME...].

Prints {"version", "file"} of the top-level package once it is imported, then {"names": true}.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module


def main(module: str, names: list[str]) -> None:
    """Import and report; what goes wrong is raised."""
    top = import_module(module.partition(".")[0])
    version = getattr(top, "__version__", None)
    facts = {"version": str(version) if version else None, "file": getattr(top, "__file__", None)}
    print(json.dumps(facts), flush=True)
    loaded = import_module(module)
    for name in names:
        getattr(loaded, name)
    print(json.dumps({"names": True}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
