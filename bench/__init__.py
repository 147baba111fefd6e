"""What a lock costs, side by side with its peers and its limits: ``python -m bench``, see README.md."""
