#!/usr/bin/env bash
# A user of RabbitMQ for each kind of process, with the rights of examples/rights/rabbitmq.sh. Run again, it changes no more than the
# passwords. Needs the broker's Erlang cookie, and RABBITMQ_NODENAME where the broker is not on this host.
set -euo pipefail

rabbitmqctl() {
    # A user that is there has its password changed. Without options: with one, rabbitmqctl of RabbitMQ 4 reads no password and waits for ever.
    if [ "$1" = add_user ] &&
        command rabbitmqctl --quiet list_users --no-table-headers </dev/null | cut --fields 1 | grep --quiet --line-regexp "$2"; then
        command rabbitmqctl change_password "$2"
    else
        command rabbitmqctl "$@"
    fi
}

source "${RIGHTS_FILE:-/rights/rabbitmq.sh}"
