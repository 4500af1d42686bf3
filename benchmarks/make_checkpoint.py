"""Writes a checkpoint of a Qwen2.5 shape with random weights: `make_checkpoint.py 0.5b DIRECTORY`."""

import argparse
from pathlib import Path

from nf4tui.models.random_checkpoint import SHAPES, write_random_checkpoint

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shape", choices=sorted(SHAPES))
parser.add_argument("directory", type=Path)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()
write_random_checkpoint(arguments.directory, SHAPES[arguments.shape], seed=arguments.seed)
