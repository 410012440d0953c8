"""The checks, by what they are about: each gives facts, a verdict, a reason and a fix."""
