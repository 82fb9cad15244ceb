#!/bin/sh
# Moves a tenant from one database to another, as the owner of the schemas: move.sh TENANT FROM_URL TO_URL
# After any failure it can be run again: the other database has all of the tenant, or nothing.
set -eu
tenant=$1 from=$2 to=$3
here=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

at() {
    psql "$1" --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 --set tenant="$tenant"
}

# Waits for payments that run. From here on none of the tenant is committed here.
echo "delete from shop.tenants where tenant = :'tenant';" | at "$from"

# Prints psql's commands that print a table's rows, as a statement that reads them again.
rows() {
    cat << END
\\echo copy $1 ($2) from stdin;
copy (select $2 from $1 where tenant = :'tenant') to stdout;
\\echo '\\\\.'
END
}

# One view of the database that is left, and one transaction in the other: the keys, the effects that they stand for, and the right to add to
# them. Not claimed_in, marked_pid and marked_backend_start, which name transactions and sessions of the database that is left.
{
    cat << END
begin isolation level repeatable read read only;
\\o $folder/unfinished
\\i $here/unfinished.sql
\\o
\\echo begin;
END
    rows oncely.idempotency_keys "created_at, completed_at, attempts, crash_attempts, status, tenant, consumer, key, fingerprint, response, \
reason, error_code, last_error, not_before, expires_at, owner, fencing_token, run_ends_at, steps, http_status, http_headers, http_body, \
grace_ends_at"
    rows shop.payments "tenant, id, cents"
    cat << 'END'
\echo insert into shop.tenants (tenant) values (:'tenant');
\echo commit;
END
} > "$folder/export.sql"
at "$from" < "$folder/export.sql" > "$folder/import.sql"

if grep --invert-match '|0$' "$folder/unfinished" >&2; then
    echo "$tenant is served by neither database now: end the above, and run this again" >&2
    exit 1
fi
at "$to" < "$folder/import.sql"
