"""Speed benchmarks: `flbench speed`, or `python -m flbench_benchmarks.speed [PART]...`.

A part is a module with a TITLE, a GOAL and `run(request) -> rows`. It is measured in a process of
its own (`measure`), which writes `FOLDER/PART.json`; `tables` makes the page of these files.
Programs that are compared run in processes of their own and play their rounds alternately
(`interleaved`).
"""
