"""How fast the images of a store are, on this machine, and what limits them."""

from dbloader.benchmarking.measuring import benchmark
from dbloader.benchmarking.report import Benchmark, Measurement

__all__ = ["Benchmark", "Measurement", "benchmark"]
