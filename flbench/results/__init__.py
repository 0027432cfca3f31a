"""Result files: schema, reading, writing, comparing."""
