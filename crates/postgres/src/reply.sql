-- Writes replies through a function that defines their form; a worker can't insert events itself.
select oncely.write_replies($1, $2, $3, $4, $5, $6, $7, $8, $9) as "written!"
