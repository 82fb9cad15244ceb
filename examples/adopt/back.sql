-- What Oncely has processed, for the old consumer.
insert into shop.processed (tenant, message_id, processed_at)
select tenant, key, processed_at from oncely.processed_keys where consumer = 'orders'
on conflict do nothing;
