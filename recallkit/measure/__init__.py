"""One way from labels and NLLs to figures: rows of tokens, sums by document, ratios of two sums.

To read the method: `queries/measure/*.sql` says how tokens are added up (Zoology, section 3.1;
which of them are AR hits, the labels say: `slicing.labels.ar_hits`); `rows` which tokens each row
of a table has; `sums` adds up; `ratio` is the one estimator, with its interval; `shares` has gap
shares, recall gain and what is retained, and says when a share is void (appendix C.1). Beside them
`labelled` reads labels and scores of the same tokens.
"""
