"""Built-in networks: functions `(shape, classes, **parameters) -> nn.Module`.

One network per module; each is an entry point of group `flbench.models`. `shape` is the shape of a
sample without the batch dimension. The last `nn.Linear` of a network is its head, all layers before
it are its body. A network raises UserError if samples have another shape than it expects.
`image_input` checks and adapts images; `pretrained` reads weights from files.
"""
