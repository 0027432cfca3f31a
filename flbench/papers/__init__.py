"""The tables of the papers, and how far they reproduce."""
