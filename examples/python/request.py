"""Asks for a quote and waits for the answer: what the worker's SQL function returned, the same for every copy of the request."""

import json
import os
import sys
import time

import pika


def main() -> None:
    request, pieces = sys.argv[1], int(sys.argv[2])
    broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = broker.channel()
    channel.confirm_delivery()
    answers = channel.queue_declare("", exclusive=True).method.queue
    properties = pika.BasicProperties(
        message_id=request,  # The same on every try, so that the request takes effect once.
        correlation_id=request,
        reply_to=answers,
        content_type="application/json",
        delivery_mode=2,
        headers={"x-tenant-id": "acme"},
    )
    channel.basic_publish("", "shop.quotes", json.dumps({"pieces": pieces}), properties, mandatory=True)
    deadline = time.monotonic() + 30
    for method, reply, body in channel.consume(answers, auto_ack=True, inactivity_timeout=1):
        if body is not None and reply.correlation_id == request:
            print(body.decode(), flush=True)
            return
        if time.monotonic() > deadline:
            sys.exit("no answer within 30 seconds")


main()
