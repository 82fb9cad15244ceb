-- Returns statements ordered by their data: the handler's argument is the result of the claim, and a list of results
-- with aggregates is computed after the last row.
--
-- Parsed and planned under the handler's search_path (a handler that is a plain expression becomes part of the plan),
-- so they look up nothing along it. After the handler's last row, Oncely's path is set for the rest of the transaction.
-- "fresh" has no rest: COMMIT runs the handler's deferred work.
create or replace function oncely.handler_calls(handler text, batch boolean, out together text, out fresh text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    answers text := 'pg_catalog.array_agg(r.seq), '
        'case when pg_catalog.count(r.response) operator(pg_catalog.>) 0 then %s end';
    responses text := 'pg_catalog.array_agg(r.response)';
    pinned text := 'pg_catalog.set_config(''search_path'', ''pg_catalog, pg_temp'', true)';
    -- OFFSET 0: otherwise the result of a handler declared stable would be computed anew for each reference to it.
    call text := case
        when batch
            then ' from (select b.seq, b.response from %s(%s) as b (seq, response) offset 0) as r (seq, response)'
        else ' from (select m.seq, %s(m) from pg_catalog.unnest(%s) as m offset 0) as r (seq, response)'
    end;
    name text := oncely.handler_name(handler, batch);
begin
    together := 'select ' || format(answers, 'oncely.response_texts(' || responses || ', $2)') || ', ' || pinned
        || format(call, name, '$1');
    fresh := 'select oncely.record_fresh($1, $3, $4, $5, $6, $7, $8, $9, $10, '
        || format(answers, responses) || ')' || format(call, name, 'oncely.claim_fresh($1, $2, $3, $4, $11)');
end
$$;
comment on function oncely.handler_calls is
    'The statements that run a handler on a batch ($1), for a worker to prepare: by itself, and as a transaction of '
    'its own with the claim before it and the responses, the trail and the mirror record after it.';
