"""The contract between the core and method plugins: hooks, data types, context, seeding."""
