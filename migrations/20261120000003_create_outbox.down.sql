drop table oncely.outbox;
