"""The built-in metrics of clients, found through entry points like those of others."""
