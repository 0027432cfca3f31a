"""Speed benchmarks: `flbench speed`, or `python -m flbench_benchmarks.speed PART FOLDER`.

A part is a module with a TITLE, a GOAL and `run(asked) -> rows`; its file is `FOLDER/PART.json`.
Programs that are compared are processes of their own, which play their rounds in turn (`race`).
"""
