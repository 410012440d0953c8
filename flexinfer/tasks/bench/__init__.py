"""`bench`: what is measured and how, what keeps a figure from being shown, how it is told.

The way in is `flexinfer.tasks.bench.run.run_bench(...) -> BenchReport`.
"""
