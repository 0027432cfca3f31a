"""The contract between flbench and its plugins.

`hookspecs` lists the hooks; `state`, `dataset` and `types` hold the data that they pass; `context`
is what a method can ask the core for; `client` is the base class of local training. `layout`,
`model_bank` and `parameters` describe models and settings; `seeding` derives all randomness.
"""
