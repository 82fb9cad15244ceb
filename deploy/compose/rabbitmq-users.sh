#!/usr/bin/env bash
# A user of RabbitMQ for each kind of process, with the rights of examples/rights/rabbitmq.sh. Run again, it changes no more than the
# passwords. Needs the broker's Erlang cookie, and BROKER_NODE where the broker is not on this host.
set -euo pipefail

rabbitmqctl() {
    local node=(command rabbitmqctl ${BROKER_NODE:+--node "$BROKER_NODE"} --quiet)
    # A user that is there has its password changed.
    if [ "$1" = add_user ] && "${node[@]}" list_users --no-table-headers </dev/null | cut --fields 1 | grep --quiet --line-regexp "$2"; then
        "${node[@]}" change_password "$2"
    else
        "${node[@]}" "$@"
    fi
}

source "${RIGHTS_FILE:-/rights/rabbitmq.sh}"
