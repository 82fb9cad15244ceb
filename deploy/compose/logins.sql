-- As the owner, after the migrations: a login for each kind of process, with its role and nothing else. Run again, it
-- changes no more than the passwords.
\set ON_ERROR_STOP on
\getenv worker_password WORKER_PASSWORD
\getenv relay_password RELAY_PASSWORD
\getenv operator_password OPERATOR_PASSWORD
select format('create role %I login', login)
from (values ('worker'), ('relay'), ('operator')) as v (login)
where not exists (select from pg_roles where rolname = login) \gexec
alter role worker password :'worker_password';
alter role relay password :'relay_password';
alter role operator password :'operator_password';
grant oncely_worker to worker;
grant oncely_relay to relay;
grant oncely_operator to operator;

-- What the handler does, it does as the worker: yours needs its own.
grant usage on schema app to worker;
grant insert on app.payments to worker;
