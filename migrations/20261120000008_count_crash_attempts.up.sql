-- A message that kills the process leaves no failure behind: its transaction is rolled back and its attempt uncounted. So a
-- redelivered message is marked before it runs, and found out after a few marks that nobody took back.
alter table oncely.idempotency_keys add column crash_attempts integer not null default 0;
comment on column oncely.idempotency_keys.crash_attempts is 'Runs that began after a redelivery and whose end nobody reported: the process died in them, or they are at work now. After consumers.retry.max_crashes the message is dead-lettered as crash.';
