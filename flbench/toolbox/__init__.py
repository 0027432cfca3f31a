"""Functions that method plugins use: averaging, similarity, clustering, heterogeneity."""
