"""What every format reads with: limits, paths, checks, and a process of its own for libraries that crash."""
