"""`barrage connect` as a process that can be killed, and comes again when the server is not there
yet."""

from __future__ import annotations

import sys
import time

from barrage.cli.main import app

if __name__ == "__main__":
    while True:
        try:
            app(["connect", *sys.argv[1:]], prog_name="barrage")
        except SystemExit as ended:
            sys.stderr.write(f"ended with {ended.code}\n")
            sys.stderr.flush()
            if ended.code != 1:
                raise
        time.sleep(0.2)
