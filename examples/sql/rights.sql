-- Rights of applications. The book includes them; a test runs them after `create role shop login`.
-- ANCHOR: rights
select oncely.grant_right('shop', 'consume', 'invoices', 'acme');
select oncely.grant_right('shop', 'emit', 'orders', 'acme');
select oncely.revoke_rights('shop', 'emit', null, null);
-- ANCHOR_END: rights
