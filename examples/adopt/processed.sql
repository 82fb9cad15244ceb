-- Keys that the old consumer has processed and whose copies may still come: as long as they are remembered.
copy (
    select tenant, message_id as key, processed_at as completed_at
    from shop.processed
    where processed_at > now() - interval '7 days'
) to stdout with (format csv, header);
