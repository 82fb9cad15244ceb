#!/usr/bin/env bash
# The commands of the tour (docs/src/tutorial/tour.md), which includes them from here. A test runs this file on servers of its own:
# tests/it/documents.rs. Needs the three URLs, the programs and psql in PATH, and ONCELY_CONFIG.
set -euo pipefail
set -m

# ANCHOR: setup
oncely migrate
psql "$DATABASE_URL" --file examples/tour/payments.sql
oncely topology apply
oncely check
# ANCHOR_END: setup

# ANCHOR: run
worker & relay &

oncely publish payments '{"order": "1182", "amount": 20}' --message-id order-1182 --header x-tenant-id=acme
oncely publish payments '{"order": "1182", "amount": 20}' --message-id order-1182 --header x-tenant-id=acme
# ANCHOR_END: run

pids=$(jobs -p)
# A person needs longer than worker and relay to type the next line; a script waits.
until_decided() {
    done="select (select count(*) from oncely.audit) >= $1 and not exists (select from oncely.mirror_queue)"
    until [ "$(psql "$DATABASE_URL" --quiet --tuples-only --no-align --command "$done")" = t ]; do
        sleep 0.1
    done
}
until_decided 2

# ANCHOR: other
oncely publish payments '{"order": "1182", "amount": 99}' --message-id order-1182 --header x-tenant-id=acme
# ANCHOR_END: other

until_decided 3

# ANCHOR: look
psql "$DATABASE_URL" --command 'select * from app.payments'
oncely explain order-1182
# ANCHOR_END: look

# ANCHOR: stop
kill %1 %2
# ANCHOR_END: stop
for pid in $pids; do
    wait "$pid"
done
