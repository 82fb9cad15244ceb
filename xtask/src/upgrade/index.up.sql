-- no-transaction
create index concurrently idempotency_keys_upgrade_trial on oncely.idempotency_keys (upgrade_trial);
