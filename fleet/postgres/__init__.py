"""The embedded Postgres: a real server for people who have none, shared by every process that uses its folder.

The protocol, all of it by file locks, so that the death of any process lets go by itself:

    start.lock   held exclusively while somebody decides: bring the server up, attach to it, or stop it.
    users.lock   held shared by every process for as long as it uses the server. Whoever lets go and could then hold it
                 exclusively was the last one, and stops the server before it releases start.lock.

    data_dir/
      data/      what initdb made (renamed into place when complete: a killed initdb leaves nothing half done)
      socket/    the Unix socket
      dsn        where the server listens, password included; `psql "$(cat dsn)"` works
      password   made once, by initdb's side
      postgres.log
"""

from fleet.postgres.binaries import find_binaries
from fleet.postgres.server import Server, attach, is_running

__all__ = ["Server", "attach", "find_binaries", "is_running"]
