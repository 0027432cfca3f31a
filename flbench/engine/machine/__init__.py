"""The machine under torch: which instructions it uses, and how its memory behaves.

`instructions` and `processor` say what the processor can do, `portable` limits it to what every
x86-64 processor with AVX2 computes alike, `deterministic` asks torch for kernels that give the same
bits twice, and `allocator` sets what the memory allocator gives back.
"""
