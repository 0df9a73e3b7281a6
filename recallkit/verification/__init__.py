"""`verify`: whether the files of results are unchanged and belong together."""
