"""Run a script of this folder without collecting garbage. Arguments: SCRIPT [ARGUMENT...].

What packages make as they are imported lives as long as the process, which ends soon: looking
through it, now and at the end, takes a third of a probe's time.
"""

from __future__ import annotations

import gc
import runpy
import sys

if __name__ == "__main__":
    gc.disable()
    del sys.argv[0]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        gc.freeze()
