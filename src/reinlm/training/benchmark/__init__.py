"""Benchmarks of a model on this machine: what `reinlm bench` measures."""

from reinlm.training.benchmark.config import BenchConfig
from reinlm.training.benchmark.figures import FIGURES, Figure
from reinlm.training.benchmark.run import Benchmark, run_bench

__all__ = ["FIGURES", "BenchConfig", "Benchmark", "Figure", "run_bench"]
