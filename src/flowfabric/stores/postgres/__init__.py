"""PostgreSQL: the production store. Row locks in key order, several connections, several processes."""
