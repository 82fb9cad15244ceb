create or replace function oncely.worker_name(worker text) returns text
language sql stable
begin atomic
    select coalesce(nullif(worker, ''), nullif(current_setting('application_name'), ''), session_user);
end;
comment on function oncely.worker_name is
    'What the caller calls itself, for the audit trail: the name given, else application_name, else the user. Who '
    'it was stands in login.';
