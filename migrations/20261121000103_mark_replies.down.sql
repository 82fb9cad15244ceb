alter table oncely.events drop column reply;
