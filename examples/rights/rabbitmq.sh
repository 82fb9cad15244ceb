#!/usr/bin/env bash
# Users of RabbitMQ, each with what its processes need and nothing else: for a consumer that reads `payments`, and for events that go to
# `orders`. The book includes this file; a test runs it and works as these users (tests/it/rights/servers.rs).
set -euo pipefail

# ANCHOR: rights
# Declares queues: oncely topology apply. Where `bindings` names exchanges, it reads those, too.
echo "$TOPOLOGY_PASSWORD" | rabbitmqctl add_user oncely_topology
rabbitmqctl set_permissions oncely_topology '^payments($|\.)' '^payments($|\.)' '^payments($|\.)'

# Consumes; publishes copies that wait, come back, or are given up. From RabbitMQ 4.3 on a queue is seen only with a right to it: the right to
# write to one lets a user bind it to an exchange that it may read, of which there is none here.
echo "$WORKER_PASSWORD" | rabbitmqctl add_user oncely_worker
rabbitmqctl set_permissions oncely_worker '^$' '^payments\.(dlx|dead|return|retry(\..+)?)$' '^payments$'

# Publishes events. Replies go through the default exchange: with them it is '^(orders|amq\.default)$'.
echo "$RELAY_PASSWORD" | rabbitmqctl add_user oncely_relay
rabbitmqctl set_permissions oncely_relay '^$' '^orders$' '^$'

# People who requeue, discard and sweep. What stays in a dead-letter queue goes back to it through the default exchange, which leads to
# every queue of the virtual host.
echo "$OPERATOR_PASSWORD" | rabbitmqctl add_user oncely_operator
rabbitmqctl set_permissions oncely_operator '^$' '^(payments\.return|amq\.default)$' '^payments\.dead$'
# ANCHOR_END: rights
