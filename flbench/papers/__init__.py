"""Tables of papers, and their reproduction."""
