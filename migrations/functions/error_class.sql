-- Classifies SQLSTATEs like the worker (class_of in crates/postgres/src/error.rs); a test compares all. 2200H (an
-- exhausted sequence) strikes every message alike, so it belongs to the environment, as does an object that another
-- transaction holds. A client that reports a refusal (ONC07) to oncely.fail wants the message given up; one that takes
-- it for an answer completes its claim with it. ONC17 is reserved: not in this cell (see oncely.claim).
create or replace function oncely.error_class(code text) returns text
language sql immutable parallel safe
begin atomic
    select case
        when code in ('ONC01', 'ONC06', 'ONC07') then 'handler_rejected'
        when code = 'ONC02' then 'invalid_json'
        when code in ('ONC04', 'ONC05', 'ONC11', 'ONC15') then 'poison'
        when code = '57014' then 'transient'
        when code in ('25006', '2200H', '55006', '55P03', 'ONC16', 'ONC17', 'ONC22')
            or left(code, 2) in ('08', '57', '53', '58', '40', '42', '3F', '3D', '28', 'XX', 'F0', 'HV')
            then 'environment'
        when left(code, 2) in ('22', '54') then 'poison'
        else 'transient'
    end;
end;
comment on function oncely.error_class is
    'What a SQLSTATE says of a failure: transient, environment (not the message''s fault), or the reason to give '
    'the message up.';
