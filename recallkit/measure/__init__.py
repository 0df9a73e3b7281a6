"""One way from labels and NLLs to figures: sums by document and class, shares of gaps, intervals.

To read the method: `queries/measure/*.sql` says which tokens are AR hits and how tokens are classed and added up (Zoology, section 3.1);
`shares` divides a gap over slices and says when a share is void (appendix C.1); `intervals` resamples documents. Beside them `labelled`
opens labels and scores and checks that they are of the same tokens, `batches` reads them and asks the queries, `classes` says which
classes each row of a table is made of, and `sums` adds up.
"""
