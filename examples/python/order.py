"""Places orders. Each one, and the event that tells the world of it, is one transaction: both are there, or neither."""

import os
import sys

import psycopg
from psycopg.types.json import Jsonb


def place(sql: psycopg.Connection, tenant: str, order: str, cents: int) -> None:
    with sql.transaction():
        placed = sql.execute(
            "insert into shop.orders (tenant, id, cents) values (%s, %s, %s) on conflict do nothing",
            (tenant, order, cents),
        )
        if placed.rowcount == 0:
            return  # Placed before this program was killed, with its event.
        sql.execute(
            """select oncely.emit(
                'shop', 'order.placed', %s, headers => %s, ordering_key => %s, tenant => %s
            )""",
            (Jsonb({"order": order, "cents": cents}), Jsonb({"x-tenant-id": tenant}), order, tenant),
        )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with psycopg.connect(os.environ["DATABASE_URL"], application_name="order.py", autocommit=True) as sql:
        for number in range(1, count + 1):
            place(sql, "acme", f"order-{number}", number * 100)
    print(f"{count} orders are placed", flush=True)


main()
