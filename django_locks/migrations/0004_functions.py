"""Functions for PostgreSQL, which keep the plans of an attempt at a lock and of a release.

They save half of what a refusal costs, also behind a pooler in transaction mode, where nothing can be prepared. They
may be missing: the store then sends the statements themselves. To be rid of them, migrate back to before this.

A release does not wait for the disk. If the server crashes before it is written, the name is held for the rest of the
TTL, as if its holder had crashed. Whoever takes the name after it writes both, as the log has an order. A release that
keeps the name (``at_least``) does wait: the name would be free too early.
"""

from typing import Any

from django.db import migrations

# Names without a schema, here and in its body: like the table, it is found by the caller's search_path.
ACQUIRE = """
CREATE OR REPLACE FUNCTION django_locks_lease_acquire(
  p_name varchar, p_owner varchar, p_holder varchar, p_ttl bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  granted bigint;
BEGIN
  PERFORM 1 FROM django_locks_lease AS h
  WHERE h.name = p_name AND h.owner <> p_owner
    AND h.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
  IF FOUND THEN
    RETURN NULL;
  END IF;
  INSERT INTO django_locks_lease AS l
    (name, owner, holder, fence, acquired_at, expires_at, released_at, outcome)
  VALUES (p_name, p_owner, p_holder,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_ttl, NULL, '')
  ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner, holder = excluded.holder, released_at = NULL, outcome = '',
    fence = CASE WHEN l.owner = excluded.owner
      AND l.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
      THEN l.fence ELSE l.fence + 1 END,
    acquired_at = CASE WHEN l.owner = excluded.owner
      AND l.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
      THEN l.acquired_at ELSE (extract(epoch FROM clock_timestamp()) * 1000000)::bigint END,
    expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_ttl
  WHERE l.owner = excluded.owner
    OR l.expires_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
  RETURNING l.fence INTO granted;
  RETURN granted;
END
$$
"""

RELEASE = """
CREATE OR REPLACE FUNCTION django_locks_lease_release(
  p_name varchar, p_owner varchar, p_hold_for bigint, p_outcome varchar)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  UPDATE django_locks_lease AS l SET
    owner = '', outcome = p_outcome,
    released_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_hold_for
  WHERE l.name = p_name AND l.owner = p_owner
    AND l.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF p_hold_for <= 0 THEN
    SET LOCAL synchronous_commit = off;
  END IF;
  RETURN true;
END
$$
"""

# Answers 2 if somebody waits, who is notified: he holds a shared advisory lock meanwhile.
RELEASE_AND_NOTIFY = """
CREATE OR REPLACE FUNCTION django_locks_lease_release_and_notify(
  p_name varchar, p_owner varchar, p_hold_for bigint, p_outcome varchar,
  p_channel varchar, p_lock_class integer, p_lock_key integer)
RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  IF NOT django_locks_lease_release(p_name, p_owner, p_hold_for, p_outcome) THEN
    RETURN 0;
  END IF;
  IF pg_try_advisory_xact_lock(p_lock_class, p_lock_key) THEN
    RETURN 1;
  END IF;
  PERFORM pg_notify(p_channel, p_name);
  RETURN 2;
END
$$
"""

DROP_ACQUIRE = "DROP FUNCTION IF EXISTS django_locks_lease_acquire(varchar, varchar, varchar, bigint)"
DROP_RELEASE = "DROP FUNCTION IF EXISTS django_locks_lease_release(varchar, varchar, bigint, varchar)"
DROP_RELEASE_AND_NOTIFY = """
DROP FUNCTION IF EXISTS django_locks_lease_release_and_notify(
  varchar, varchar, bigint, varchar, varchar, integer, integer)"""


def create(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in (ACQUIRE, RELEASE, RELEASE_AND_NOTIFY):
            schema_editor.execute(statement, params=None)


def drop(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in (DROP_RELEASE_AND_NOTIFY, DROP_RELEASE, DROP_ACQUIRE):
            schema_editor.execute(statement, params=None)


class Migration(migrations.Migration):
    dependencies = [("django_locks", "0003_run_template")]

    operations = [migrations.RunPython(create, drop)]
