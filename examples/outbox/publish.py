"""An order and its event, in one transaction:  DATABASE_URL=… python3 publish.py"""

import json
import os

import psycopg


def place_order(connection: psycopg.Connection, order: str, total: str) -> str:
    """Commits the order and its event together, and returns the event's id."""
    with connection.transaction():
        connection.execute("INSERT INTO public.example_order VALUES (%s, %s) ON CONFLICT DO NOTHING", (order, total))
        event = connection.execute(
            "SELECT postrider.publish('shop.order.placed', %s::jsonb, aggregate_id => %s::text, group_id => 'acme')",
            (json.dumps({"order": order, "total": total}), order),
        )
        return event.fetchone()[0]


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS public.example_order (id text PRIMARY KEY, total numeric NOT NULL)")
        connection.commit()
        print("committed", place_order(connection, "python-1", "12.50"))

        # What is rolled back never was.
        try:
            with connection.transaction():
                connection.execute("SELECT postrider.publish('shop.order.placed', '{}', id => 'never')")
                raise RuntimeError("the payment failed")
        except RuntimeError:
            print("rolled back, and no event with it")
