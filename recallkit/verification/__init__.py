"""`verify`: whether the files of results are as they were written, and fit together."""
