"""Pure numbers in, numbers out: what a history, a dataset or a measurement says."""
