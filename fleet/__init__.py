"""Fleet: a distributed cron and job scheduler that meets only in Postgres."""

__version__ = "0.1.0"
