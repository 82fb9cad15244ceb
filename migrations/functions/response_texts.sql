-- Returns responses as text for a worker, which holds all of a batch at once. The message whose response is too large
-- is identified by running messages one by one; a batch with too many of them runs in smaller ones.
create or replace function oncely.response_texts(responses jsonb[], response_limit bigint) returns text[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A worker has each several times: as it arrived, as it is stored.
    most constant bigint := 4194304;
    largest bigint;
    total bigint;
    texts text[];
begin
    select max(octet_length(t.text)), sum(octet_length(t.text)), array_agg(t.text order by t.n)
    into largest, total, texts
    from (select r.n, r.response::text as text from unnest(responses) with ordinality as r (response, n) offset 0) as t;
    if largest > response_limit then
        raise exception using errcode = 'ONC06', message = format(
            'the response has %s bytes as JSON; the limit is %s (consumers.response_limit, '
            'consumers.on_large_response)',
            largest, response_limit
        );
    elsif total > most then
        raise exception using errcode = 'ONC25', message = format(
            'the responses of a batch have %s bytes as JSON; the limit is %s', total, most
        );
    end if;
    return texts;
end
$$;
comment on function oncely.response_texts is
    'Returns a batch''s responses as text, in their order. Refuses one over the limit (ONC06), and more than 4 MiB '
    'together (ONC25).';
