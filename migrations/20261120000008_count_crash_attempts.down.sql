alter table oncely.idempotency_keys drop column crash_attempts;
