-- The schema stays: it holds the list of applied migrations.
drop function oncely.bucket(text);
drop function oncely.epoch();
drop table oncely.cell;
