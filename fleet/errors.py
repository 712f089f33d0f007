"""Every error Fleet shows a person, and the exit code it ends a command with.

A message is one sentence that says what was wrong, which one, and what to do.
"""


class FleetError(Exception):
    """Something failed; the message is written for the person who asked."""

    exit_code = 1


class UsageError(FleetError):
    """What was asked makes no sense: a bad value, an unknown name, two options that exclude each other."""

    exit_code = 2


class NotFound(FleetError):
    """The named thing does not exist."""

    exit_code = 3


class Conflict(FleetError):
    """The thing exists, but its state refuses what was asked."""

    exit_code = 4


class Unhealthy(FleetError):
    """The fleet or its database is not well."""

    exit_code = 5


class TimedOut(FleetError):
    """What was waited for did not come in time."""

    exit_code = 6
