drop table oncely.idempotency_keys;
