"""Built-in networks: functions `(shape, classes, **parameters) -> nn.Module`.

Entry points of group `flbench.models`. `shape` is one sample's shape without the batch; the last
`nn.Linear` of a network is its head, everything before it its body.
"""
