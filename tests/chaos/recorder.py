"""Records every committed change of a drill's database by triggers, and writes it out as changes.jsonl.

The record of a change is a row of the same transaction: what rolled back was never recorded. `seq` is the order in
which changes were made, row by row; transactions that touch different rows may commit in another order.

Rows are written whole, without their nulls. Two things are left out to keep a long drill small: of a changed schedule
only its id, its name and the columns that changed are written (these with their nulls: null is what they became), and
a row that was updated to what it was is not recorded.
"""

import json
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

TABLES = ("cron_schedules", "schedule_versions", "cron_ticks", "executions", "attempts", "gaps")
PAGE = 5000

INSTALL = """
CREATE TABLE chaos_changes (
    seq bigserial PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid bigint NOT NULL DEFAULT txid_current(),
    tab text NOT NULL,
    op text NOT NULL,
    old jsonb,
    new jsonb,
    by text NOT NULL DEFAULT current_setting('application_name')
);
CREATE FUNCTION chaos_part(whole jsonb, other jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_object_agg(key, value) FROM jsonb_each(whole)
     WHERE key IN ('id', 'name') OR value IS DISTINCT FROM other -> key
$$;
CREATE FUNCTION chaos_record() RETURNS trigger LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    was jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    is_now jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
BEGIN
    IF was IS NOT DISTINCT FROM is_now THEN
        RETURN NULL;
    END IF;
    IF TG_TABLE_NAME = 'cron_schedules' AND TG_OP = 'UPDATE' THEN
        INSERT INTO chaos_changes (tab, op, old, new)
        VALUES (TG_TABLE_NAME, TG_OP, chaos_part(was, is_now), chaos_part(is_now, was));
    ELSE
        INSERT INTO chaos_changes (tab, op, old, new)
        VALUES (TG_TABLE_NAME, TG_OP, jsonb_strip_nulls(was), jsonb_strip_nulls(is_now));
    END IF;
    RETURN NULL;
END $$;
"""
WATCH = (
    "CREATE TRIGGER chaos_record AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION chaos_record()"
)


def install(dsn: str) -> None:
    """Record from now on."""
    with psycopg.connect(dsn) as connection:
        connection.execute(INSTALL)
        for table in TABLES:
            connection.execute(psycopg.sql.SQL(WATCH).format(psycopg.sql.Identifier(table)))


EXPORT = """
SELECT seq, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') AS at, xid, tab AS "table",
       op, old, new, by
  FROM chaos_changes ORDER BY seq
"""


def export(dsn: str, path: Path) -> int:
    """Write everything recorded, a page at a time; returns how many changes that were."""
    count = 0
    with (
        psycopg.connect(dsn, row_factory=dict_row) as connection,
        connection.cursor("chaos_changes") as cursor,
        path.open("w") as file,
    ):
        cursor.itersize = PAGE
        cursor.execute(EXPORT)
        for row in cursor:
            file.write(_line(row))
            count += 1
    return count


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"
