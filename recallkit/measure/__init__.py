"""One way from labels and NLLs to figures: sums by document and class, shares of gaps, intervals.

To read the method: `queries/measure/*.sql` says how tokens are classed and added up (Zoology, section 3.1; which of them are AR hits, the
labels say: `slicing.labels.ar_hits`); `shares` divides a gap over slices and says when a share is void (appendix C.1); `intervals`
resamples documents. Beside them `labelled` reads labels and scores of the same tokens, `classes` says which classes each row of a table is
made of, and `sums` adds up.
"""
