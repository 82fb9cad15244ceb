-- The function knows what a reply is made of; a worker may write no other event.
select oncely.write_replies($1, $2, $3, $4, $5, $6, $7, $8, $9) as "written!"
