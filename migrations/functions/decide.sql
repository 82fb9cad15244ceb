-- Applies the worker's rule (crates/core/src/decide.rs); a test goes through all cases with both.
create or replace function oncely.decide(
    status oncely.key_status, known bytea, fingerprint bytea, is_leased boolean, on_conflict text
) returns text
language sql immutable parallel safe
begin atomic
    select case
        when not oncely.same_payload(known, fingerprint) and on_conflict = 'dead_letter' then 'conflict'
        when status = 'COMPLETED' then 'duplicate'
        when status = 'IN_PROGRESS' and is_leased then 'leased'
        when status = 'IN_PROGRESS' then 'retake'
        else 'given_up'
    end;
end;
comment on function oncely.decide is
    'What a known key means for a message: conflict, duplicate, given_up, retake, or leased: it ran under a lease, and '
    'a run that has none waits for its end and does not run it.';
