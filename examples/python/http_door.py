"""Payments over HTTP, once for each Idempotency-Key: key, effect and answer are one transaction, and the answer leaves after its COMMIT.

A client that hangs up, a server that is killed, a copy at the same time: the same request with the same key gets the same answer.
"""

import asyncio
import base64
import hashlib
import json
import os
from contextlib import asynccontextmanager

import psycopg
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool


# ANCHOR: middleware
class Idempotency:
    """For POST and PATCH. `tenant` and `principal` say whose request it is, by what authentication has left in the scope: another principal
    with the same key is refused, and is told nothing of the first one's answer."""

    KEPT = {b"content-type", b"content-encoding", b"location", b"etag", b"link", b"cache-control"}  # Never set-cookie.
    MAY_CHANGE = {401, 403, 407, 408, 409, 421, 423, 425, 429}
    LONGEST = 1 << 20  # Bytes of a request.

    def __init__(self, app, pool, consumer, tenant, principal):
        self.app, self.pool, self.consumer, self.tenant, self.principal = app, pool, consumer, tenant, principal

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["method"] not in ("POST", "PATCH"):
            return await self.app(scope, receive, send)
        keys = [value for name, value in scope["headers"] if name == b"idempotency-key"]
        key = keys[0].decode("latin-1").strip('"') if len(keys) == 1 else ""
        if not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
            return await reply(send, 400, detail="one Idempotency-Key of 1 to 255 visible characters is needed")
        chunks, length, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            chunk, more = message.get("body", b""), message.get("more_body", False)
            length += len(chunk)
            # What is too long is read to its end, or the client would not read its answer, and is not kept.
            if length <= self.LONGEST:
                chunks.append(chunk)
        if length > self.LONGEST:
            return await reply(send, 413, detail=f"a request of up to {self.LONGEST} bytes is taken")
        # Shielded: a client that hangs up interrupts nothing.
        status, headers, answer = await asyncio.shield(self.once(scope, key, b"".join(chunks)))
        await sent(send, status, headers, answer)

    async def once(self, scope, key, body):
        identity = (self.tenant(scope), self.consumer, key)
        parts = (scope["method"].encode(), scope["path"].encode(), scope["query_string"], self.principal(scope), body)
        # Each after its length: no two requests look the same.
        print_of = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
        try:
            async with self.pool.connection() as connection, connection.transaction() as transaction:
                # For the handler's own statements: oncely.claim waits for 100 ms, whatever is set.
                await connection.execute("set local lock_timeout = '2s'")
                found = await connection.execute(
                    "select outcome, response, reason, extract(epoch from delay)::integer + 1 as wait"
                    " from oncely.claim(%s, %s, %s, %s)",
                    (*identity, print_of),
                )
                claimed = await found.fetchone()
                match claimed["outcome"]:
                    case "granted":
                        pass
                    case "duplicate" if claimed["response"] and "http" in claimed["response"]:
                        return stored(claimed["response"])
                    case "duplicate":  # It came as a message.
                        return problem(200, detail=claimed["response"])
                    case "retry":
                        return problem(409, claimed["wait"], detail="it is at work: send the same request again, later")
                    case "conflict":
                        return problem(422, detail="this key came before with another request")
                    case _:
                        return problem(409, detail=f"it was given up: {claimed['reason']}")
                try:
                    async with connection.transaction() as writes:
                        status, headers, answer = await call(self.app, scope, body, connection)
                        if status >= 400:
                            raise psycopg.Rollback(writes)
                finally:
                    scope["state"].pop("tx", None)
                if status >= 500 or status in self.MAY_CHANGE:
                    raise psycopg.Rollback(transaction)
                kept = [(name.decode(), value.decode("latin-1")) for name, value in headers if name in self.KEPT]
                response = {"http": status, "headers": kept, "body": base64.b64encode(answer).decode()}
                await connection.execute("select oncely.complete(%s, %s, %s, %s)", (*identity, Jsonb(response)))
            return status, headers, answer
        except psycopg.errors.LockNotAvailable:
            return problem(409, 1, detail="it is at work: send the same request again")
        except psycopg.OperationalError:
            # At COMMIT nobody knows whether it happened: the retry finds out.
            return problem(503, 1, detail="send the same request with the same key again")
        except psycopg.DatabaseError as error:
            if error.sqlstate != "ONC15":
                raise
            return problem(500, detail="the answer is too large to be stored: nothing was done")


async def call(app, scope, body, connection):
    """Runs the application with the transaction in its request.state, and returns its whole answer."""
    start, chunks = {}, []
    requests = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        # Whoever streams an answer waits here for a client that hangs up: that one interrupts nothing.
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            chunks.append(message.get("body", b""))
            start["is_whole"] = not message.get("more_body", False)

    scope.setdefault("state", {})["tx"] = connection
    await app(scope, receive, send)
    if not start.get("is_whole"):
        raise RuntimeError("the application has not ended its answer")
    return start["status"], list(start["headers"]), b"".join(chunks)


def stored(response):
    headers = [(name.encode(), value.encode("latin-1")) for name, value in response["headers"]]
    answer = base64.b64decode(response["body"])
    return response["http"], headers + [(b"idempotent-replayed", b"true")], answer


def problem(status, wait=None, detail=None):
    answer = json.dumps({"status": status, "detail": detail}).encode()
    headers = [(b"content-type", b"application/problem+json")]
    return status, headers + ([(b"retry-after", b"%d" % wait)] if wait else []), answer


async def reply(send, status, **parts):
    await sent(send, *problem(status, **parts))


async def sent(send, status, headers, answer):
    headers = [(name, value) for name, value in headers if name != b"content-length"]
    headers.append((b"content-length", b"%d" % len(answer)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
# ANCHOR_END: middleware


pool = AsyncConnectionPool(
    os.environ["DATABASE_URL"], open=False, kwargs={"row_factory": dict_row, "autocommit": True}, check=AsyncConnectionPool.check_connection
)


@asynccontextmanager
async def lifespan(_):
    async with pool:
        print("listening", flush=True)
        yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(
    Idempotency,
    pool=pool,
    consumer="payments.py",
    tenant=lambda scope: "acme",
    principal=lambda scope: dict(scope["headers"]).get(b"authorization", b""),
)


def refusal(status: int, error: str) -> Response:
    return Response(json.dumps({"error": error}), status, media_type="application/json")


async def parsed(request: Request) -> dict | None:
    """The body, where it is a JSON object."""
    try:
        value = await request.json()
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@app.post("/payments")
async def pay(request: Request):
    order = await parsed(request)
    if order is None:
        return refusal(400, "the body is no JSON object")
    if not isinstance(order.get("order"), str) or not isinstance(order.get("cents"), int):
        return refusal(422, "order is no text, or cents no number")
    await request.state.tx.execute(
        "insert into shop.payments (tenant, order_id, charge) values ('acme', %s, %s)", (order["order"], Jsonb(order))
    )
    answer = {"paid": order["order"], "receipt": os.urandom(8).hex()}
    return Response(json.dumps(answer), 201, {"location": f"/payments/{order['order']}"}, "application/json")


@app.post("/payments/bulk")
async def pay_all(request: Request):
    """An answer in pieces is stored as a whole, and sent after COMMIT, like any other."""
    orders = (await parsed(request) or {}).get("orders")
    if not isinstance(orders, list):
        return refusal(400, "the body has no list of orders")
    for order in orders:
        await request.state.tx.execute(
            "insert into shop.payments (tenant, order_id, charge) values ('acme', %s, %s)", (order, Jsonb({"order": order}))
        )

    async def receipts():
        for order in orders:
            yield f"{order},{os.urandom(8).hex()}\n"

    return StreamingResponse(receipts(), 201, media_type="text/csv")


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8090")), log_level="warning")
