"""Stops the Postgres of a drill that was killed before it could do so itself, and removes its folder.

python -m chaos.guardian FOLDER        waits for its standard input to end, which it does when the drill does
"""

import shutil
import sys
from pathlib import Path

from fleet.postgres import cluster

if __name__ == "__main__":
    sys.stdin.read()
    cluster.stop(cluster.Cluster(Path(sys.argv[1]) / "postgres"))
    shutil.rmtree(sys.argv[1], ignore_errors=True)
