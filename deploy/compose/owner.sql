-- Once, when the database is made, as its superuser: who owns what is in it. It may make roles, since the migrations make
-- those of Oncely, and is no superuser.
\getenv password OWNER_PASSWORD
create role oncely login createrole password :'password';
alter database :"DBNAME" owner to oncely;
