"""The federation: the clients' samples, divided into training, validation and test sets.

`loading` loads a data set by name; `build` divides it as a suite says; `federation` holds the
result and splits every client's samples; `shared_test_sets` draws test sets from a common pool.
"""
