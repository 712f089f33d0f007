"""The account: every number a schedule has given out must have exactly one fate. Read only.

A fate is a pending tick, a planned execution, or a gap. Planned times are numbered, so "exactly one" means: for each
schedule and scope the fates tile accounted_n + 1 … next_n - 1, whatever the rule is. All functions run in the
caller's one REPEATABLE READ transaction: the account is only right when everything is read from one snapshot.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from fleet.store.connection import Connection, rows

# The usual session is made for hot statements of a few rows; this reads whole tables, and Python thinks in between.
SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "SET LOCAL enable_seqscan = on",
    "SET LOCAL work_mem = '128MB'",
    "SET LOCAL cursor_tuple_fraction = 1",
    "SET LOCAL idle_in_transaction_session_timeout = '10min'",
)


async def begin_snapshot(connection: Connection) -> None:
    """Make the transaction just opened one snapshot, and fit for long reads."""
    for statement in SNAPSHOT:
        await connection.execute(statement)


class Part(NamedTuple):
    """Which schedules are looked at; None for all."""

    workspace: str | None = None
    ids: list[UUID] | None = None


FIND = """
SELECT id FROM cron_schedules
 WHERE (%(workspace)s::text IS NULL OR workspace_id = %(workspace)s::text)
   AND (name = %(name)s OR id::text = %(name)s)
"""


async def find(connection: Connection, workspace: str | None, name: str) -> list[UUID]:
    """Every schedule that has or had that name or id, deleted ones too: their past must be right as well."""
    return [row["id"] for row in await rows(connection, FIND, {"workspace": workspace, "name": name})]


# The filter by id is repeated in every branch so that one schedule is read by index.
FATES = """
WITH scoped AS MATERIALIZED (
    SELECT s.id, s.name, scope.scope, s.accounted_n, s.next_n
      FROM cron_schedules s CROSS JOIN LATERAL unnest(s.scopes) AS scope (scope)
     WHERE (%(workspace)s::text IS NULL OR s.workspace_id = %(workspace)s::text)
       AND (%(ids)s::uuid[] IS NULL OR s.id = ANY(%(ids)s::uuid[]))
), fates AS (
    SELECT 'tick' AS what, schedule_id, scope, n AS first_n, n AS last_n, scheduled_at AS first_at,
           scheduled_at AS last_at
      FROM cron_ticks WHERE %(ids)s::uuid[] IS NULL OR schedule_id = ANY(%(ids)s::uuid[])
     UNION ALL
    SELECT 'execution', schedule_id, scope, n, n, scheduled_at, scheduled_at
      FROM executions WHERE run = '' AND (%(ids)s::uuid[] IS NULL OR schedule_id = ANY(%(ids)s::uuid[]))
     UNION ALL
    SELECT 'gap', schedule_id, scope, first_n, last_n, first_scheduled_at, last_scheduled_at
      FROM gaps WHERE %(ids)s::uuid[] IS NULL OR schedule_id = ANY(%(ids)s::uuid[])
)
"""

# A gap may begin below accounted_n: clean-up removes only gaps that lie wholly below it.
COUNTS = (
    FATES
    + """
SELECT (SELECT coalesce(sum(next_n - 1 - accounted_n), 0) FROM scoped) AS planned,
       count(*) FILTER (WHERE f.what = 'tick') AS pending,
       count(*) FILTER (WHERE f.what = 'execution' AND f.first_n > s.accounted_n) AS executed,
       coalesce(sum(f.last_n - greatest(f.first_n, s.accounted_n + 1) + 1)
                FILTER (WHERE f.what = 'gap' AND f.last_n > s.accounted_n), 0) AS gaps
  FROM fates f JOIN scoped s ON s.id = f.schedule_id AND s.scope = f.scope
"""
)


async def counts(connection: Connection, part: Part) -> tuple[int, int, int, int]:
    """How many planned times there are; of these pending, executed, and in gaps."""
    [row] = await rows(connection, COUNTS, part._asdict())
    return int(row["planned"]), int(row["pending"]), int(row["executed"]), int(row["gaps"])


# Fates are cut to the numbers that must be tiled. A last row at next_n makes a hole at the end look like any other.
# `reached` is the highest number that the fates before this one cover.
TILES = (
    FATES
    + """
, tiles AS (
    SELECT s.id, s.name, s.scope, s.accounted_n, f.what, f.first_at, f.last_at,
           greatest(f.first_n, s.accounted_n + 1) AS first_n, least(f.last_n, s.next_n - 1) AS last_n
      FROM fates f JOIN scoped s ON s.id = f.schedule_id AND s.scope = f.scope
     WHERE f.last_n > s.accounted_n AND f.first_n < s.next_n
     UNION ALL
    SELECT id, name, scope, accounted_n, 'cursor', NULL, NULL, next_n, next_n FROM scoped
), ordered AS (
    SELECT *, coalesce(max(last_n) OVER before, accounted_n) AS reached, max(last_at) OVER before AS reached_at
      FROM tiles
    WINDOW before AS (PARTITION BY id, scope ORDER BY first_n, last_n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT name AS schedule, id AS schedule_id, scope, what, first_n, last_n, first_at, reached, reached_at,
       count(*) OVER () AS total
  FROM ordered
 WHERE first_n <> reached + 1
 ORDER BY name, id, scope, first_n
 LIMIT %(limit)s
"""
)


async def untiled(connection: Connection, part: Part, limit: int) -> list[dict[str, Any]]:
    """Where a fate does not begin right behind the one before it: a hole, or a number with two fates."""
    return await rows(connection, TILES, {**part._asdict(), "limit": limit})


# Executions at or below accounted_n are no orphans: clean-up passes those by that have not finished. A row whose
# schedule does not exist belongs to no workspace, and shows only when all are looked at.
ORPHANS = (
    FATES
    + """
SELECT s.name AS schedule, f.schedule_id, f.scope, f.what, f.first_n, f.last_n, f.first_at, s.next_n, s.accounted_n,
       f.scope = ANY(s.scopes) AS scope_exists, count(*) OVER () AS total
  FROM fates f LEFT JOIN cron_schedules s ON s.id = f.schedule_id
 WHERE (%(workspace)s::text IS NULL OR s.workspace_id = %(workspace)s::text)
   AND (s.id IS NULL OR f.scope <> ALL(s.scopes) OR f.last_n >= s.next_n OR f.first_n < 1
        OR (f.what = 'tick' AND f.first_n <= s.accounted_n))
 ORDER BY s.name, f.schedule_id, f.scope, f.first_n
 LIMIT %(limit)s
"""
)


async def orphans(connection: Connection, part: Part, limit: int) -> list[dict[str, Any]]:
    """Fates whose number was never given out or is closed already, or whose schedule or scope does not exist."""
    return await rows(connection, ORPHANS, {**part._asdict(), "limit": limit})


# A mark is a number with its time: of a tick, an execution, either end of a gap, and the cursor (next_n).
# A segment is a stretch of numbers under one rule; of several versions that begin at the same number only the newest
# ever planned anything. `since` is the instant after which its planned times are counted.
MARKS = (
    FATES
    + """
, marks AS (
    SELECT s.id, s.name, s.scope, f.what, mark.n, mark.at, s.accounted_n
      FROM fates f
      JOIN scoped s ON s.id = f.schedule_id AND s.scope = f.scope
     CROSS JOIN LATERAL (VALUES (true, f.first_n, f.first_at), (false, f.last_n, f.last_at)) AS mark (opens, n, at)
     WHERE mark.n > s.accounted_n AND mark.n < s.next_n
       AND (mark.opens OR f.last_n > f.first_n OR f.last_at <> f.first_at)
     UNION ALL
    SELECT c.id, c.name, s.scope, 'cursor', c.next_n, c.next_tick_needed_at, c.accounted_n
      FROM scoped s JOIN cron_schedules c ON c.id = s.id AND c.scopes[1] = s.scope
     WHERE c.deleted_at IS NULL
), segments AS MATERIALIZED (
    SELECT *, lead(after_n) OVER (PARTITION BY schedule_id ORDER BY after_n) AS until_n,
           anchor_at + (floor(date_part('epoch', since - anchor_at) / interval_seconds) + 1) * interval_seconds
                       * interval '1 second' AS first_at
      FROM (SELECT DISTINCT ON (schedule_id, after_n) *,
                   greatest(after_at, start_at - interval '1 millisecond') AS since
              FROM schedule_versions
             WHERE %(ids)s::uuid[] IS NULL OR schedule_id = ANY(%(ids)s::uuid[])
             ORDER BY schedule_id, after_n, version DESC) newest
)
"""
)

# The number of steps is bounded, so that a number gone wild is reported instead of overflowing a timestamp.
OFF_RULE = (
    MARKS
    + """
SELECT m.name AS schedule, m.id AS schedule_id, m.scope, m.what, m.n, m.at, planned.at AS expected,
       g.schedule_id IS NOT NULL AS has_rule, count(*) OVER () AS total
  FROM marks m
  LEFT JOIN segments g ON g.schedule_id = m.id AND m.n > g.after_n AND (m.n <= g.until_n OR g.until_n IS NULL)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN g.interval_seconds IS NOT NULL
                   THEN g.first_at + least(m.n - g.after_n - 1, 100000000000 / g.interval_seconds)
                                     * g.interval_seconds * interval '1 second'
                   WHEN m.n = g.after_n + 1 AND g.run_at > g.since THEN g.run_at END AS at) AS unbounded
 CROSS JOIN LATERAL (
       SELECT CASE WHEN unbounded.at <= coalesce(g.end_at, 'infinity') THEN unbounded.at END AS at) AS planned
 WHERE g.schedule_id IS NULL OR (g.cron_expression IS NULL AND m.at IS DISTINCT FROM planned.at)
 ORDER BY m.name, m.id, m.scope, m.n
 LIMIT %(limit)s
"""
)


async def off_rule(connection: Connection, part: Part, limit: int) -> list[dict[str, Any]]:
    """Numbers of intervals and of `once` whose time is not the one their rule gives them, or that have no rule."""
    return await rows(connection, OFF_RULE, {**part._asdict(), "limit": limit})


class CronMark(NamedTuple):
    schedule: str
    schedule_id: UUID
    scope: str
    what: str
    n: int
    at: datetime | None
    accounted_n: int
    after_n: int
    since: datetime
    end_at: datetime | None
    expression: str
    timezone: str


CRON_MARKS = (
    MARKS
    + """
SELECT m.name, m.id, m.scope, m.what, m.n, m.at, m.accounted_n, g.after_n, g.since, g.end_at, g.cron_expression,
       g.timezone
  FROM marks m
  JOIN segments g ON g.schedule_id = m.id AND m.n > g.after_n AND (m.n <= g.until_n OR g.until_n IS NULL)
 WHERE g.cron_expression IS NOT NULL
 ORDER BY m.id, m.scope, g.after_n, m.n, m.at
"""
)
PAGE = 5000


async def cron_marks(connection: Connection, part: Part) -> AsyncIterator[CronMark]:
    """The numbers and times of cron rules, in order, however many there are: a cursor on the server."""
    async with connection.cursor(name="fleet_cron_marks") as cursor:
        cursor.itersize = PAGE
        await cursor.execute(CRON_MARKS, part._asdict())
        async for row in cursor:
            yield CronMark(*row)


# The tail is worked out here once more; the stored one is what the row's id was made from. Two calls of fleet_id, not
# one around a CASE: Postgres inlines the cheap one, which makes the statement six times as fast.
WRONG_ROWS = """
WITH scoped AS MATERIALIZED (
    SELECT s.id, s.name, scope.scope, fleet_tail(s.id, scope.scope, '') AS tail
      FROM cron_schedules s CROSS JOIN LATERAL unnest(s.scopes) AS scope (scope)
     WHERE (%(workspace)s::text IS NULL OR s.workspace_id = %(workspace)s::text)
       AND (%(ids)s::uuid[] IS NULL OR s.id = ANY(%(ids)s::uuid[]))
), kept AS (
    SELECT 'tick' AS what, schedule_id, scope, '' AS run, n, scheduled_at, execute_at, id
      FROM cron_ticks WHERE %(ids)s::uuid[] IS NULL OR schedule_id = ANY(%(ids)s::uuid[])
     UNION ALL
    SELECT 'execution', schedule_id, scope, run, n, scheduled_at, execute_at, id
      FROM executions WHERE %(ids)s::uuid[] IS NULL OR schedule_id = ANY(%(ids)s::uuid[])
)
SELECT s.name AS schedule, s.id AS schedule_id, s.scope, k.what, k.n, k.scheduled_at AS at, k.id, k.execute_at,
       derived.id AS expected, count(*) OVER () AS total
  FROM kept k
  JOIN scoped s ON s.id = k.schedule_id AND s.scope = k.scope
 CROSS JOIN LATERAL (
       SELECT CASE k.run WHEN '' THEN fleet_id(s.tail, k.scheduled_at)
                         ELSE fleet_id(fleet_tail(s.id, s.scope, k.run), k.scheduled_at) END AS id) AS derived
 WHERE k.id <> derived.id OR (k.run = '' AND k.execute_at < k.scheduled_at)
 ORDER BY s.name, s.id, s.scope, k.scheduled_at
 LIMIT %(limit)s
"""


async def wrong_rows(connection: Connection, part: Part, limit: int) -> list[dict[str, Any]]:
    """Ticks and executions whose id does not follow from what they are, or that would run before their time."""
    return await rows(connection, WRONG_ROWS, {**part._asdict(), "limit": limit})
