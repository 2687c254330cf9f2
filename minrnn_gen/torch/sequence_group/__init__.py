"""Time over the ranks of a process group: rank r holds the r-th contiguous piece of every sequence."""
