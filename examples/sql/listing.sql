-- Looking at rows in SQL, as an operator, an auditor, or an auditor of some tenants. The book includes it; a test runs it.
-- ANCHOR: listing
select * from oncely.list_audit(of_tenant => 'acme', since => now() - interval '1 day');
select * from oncely.list_audit(of_outcome => 'completed', of_key => 'order-1182');
select * from oncely.list_keys(of_tenant => 'acme');
select * from oncely.list_keys(of_consumer => 'payments', of_status => 'FAILED');
select * from oncely.find_key('order-1182');
select * from oncely.list_letters(of_states => '{waiting}');
select * from oncely.list_letter_groups();
select * from oncely.list_events(of_state => 'parked');
-- ANCHOR_END: listing
